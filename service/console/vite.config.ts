// The build writes what is committed: hashed names, no source maps, and SOURCES, a hash of
// everything it was made from, which tests/console compares with the sources.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { defineConfig, type Plugin } from "vite";

const ROOT = import.meta.dirname;
const SOURCES = ["index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts", "src"];

function filesOf(path: string): string[] {
  try {
    return readdirSync(path, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name));
  } catch {
    return [path];
  }
}

/** sha256 over "name, NUL, sha256 of the content, newline" of all sources in the order of names. */
function hashOfSources(): string {
  const all = SOURCES.flatMap((name) => filesOf(join(ROOT, name)));
  const names = all.map((path) => relative(ROOT, path)).sort();
  const whole = createHash("sha256");
  for (const name of names) {
    const content = createHash("sha256").update(readFileSync(join(ROOT, name))).digest("hex");
    whole.update(`${name}\0${content}\n`);
  }
  return whole.digest("hex");
}

const noteSources: Plugin = {
  name: "note-sources",
  closeBundle() {
    writeFileSync(join(ROOT, "dist", "SOURCES"), `${hashOfSources()}\n`);
  },
};

export default defineConfig({
  root: ROOT,
  build: {
    target: "es2022",
    outDir: "dist",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
  plugins: [noteSources],
});
