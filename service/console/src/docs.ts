// The page /docs: every call of REST, to be read and tried. It asks nobody but this service, with
// the token that the console keeps for this tab.
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
    const told = document.createElement("p");
    told.innerHTML = 'This service asks for a token: <a href="/">give it to the console</a>, then come back in the same tab.';
    document.getElementById("app")?.replaceChildren(told);
    return;
  }
  SwaggerUIBundle({
    spec: await answer.json(),
    dom_id: "#app",
    deepLinking: true,
    // Else the description would be sent to a service of others to be checked.
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
