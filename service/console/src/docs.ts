// The page /docs: every REST call, with a form to try it. It calls only this service, with the token
// that the console stores for this tab.
import SwaggerUIBundle from "swagger-ui-dist/swagger-ui-es-bundle.js";
import { headersOf } from "./lib/api";
import "swagger-ui-dist/swagger-ui.css";
import "./style/docs.css";

interface Sent {
  url: string;
  headers: Record<string, string>;
}

function withToken(sent: Sent): Sent {
  if (new URL(sent.url, location.href).origin === location.origin) Object.assign(sent.headers, headersOf());
  return sent;
}

async function show(): Promise<void> {
  const answer = await fetch("/openapi.json", { headers: headersOf() });
  if (answer.status === 401) {
    const reported = document.createElement("p");
    reported.innerHTML = 'This service asks for a token: <a href="/">give it to the console</a>, then come back in the same tab.';
    document.getElementById("app")?.replaceChildren(reported);
    return;
  }
  SwaggerUIBundle({
    spec: await answer.json(),
    dom_id: "#app",
    deepLinking: true,
    // Otherwise the description would be sent to a third party for validation.
    validatorUrl: null,
    docExpansion: "list",
    defaultModelsExpandDepth: -1,
    displayRequestDuration: true,
    requestInterceptor: withToken,
    presets: [SwaggerUIBundle.presets.apis],
  });
}

document.documentElement.classList.toggle("dark-mode", matchMedia("(prefers-color-scheme: dark)").matches);
void show();
