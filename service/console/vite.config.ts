// The build writes what is committed: hashed names, no source maps, LICENSES.txt with the licence
// of every package that is in it, and SOURCES, a hash of everything it was made from, which
// tests/console compares with the sources.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { defineConfig, type Plugin } from "vite";

const ROOT = import.meta.dirname;
const PAGES = ["index.html", "docs.html"];
const SOURCES = [...PAGES, "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts", "src"];

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

/** The texts of a package's licence, and of what it was bundled with itself. */
function licenceOf(folder: string, used: Set<string>): string {
  const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const texts = readdirSync(folder)
    .filter((file) => /^(licen[cs]e|notice)(\.\w+)?$/i.test(file) || used.has(file.replace(/\.LICENSE\.txt$/, "")))
    .filter((file) => !/\.(js|css)$/.test(file))
    .sort()
    .map((file) => readFileSync(join(folder, file), "utf8").trim());
  return `${name} ${version} (${license})\n\n${texts.join("\n\n")}\n`;
}

function noteLicences(): Plugin {
  const used = new Map<string, Set<string>>();
  return {
    name: "note-licences",
    generateBundle() {
      for (const id of this.getModuleIds()) {
        const found = /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\/(?:.*\/)?([^/?]+)/.exec(id);
        if (found) used.set(found[1], (used.get(found[1]) ?? new Set()).add(found[2]));
      }
    },
    closeBundle() {
      const all = [...used].sort().map(([folder, files]) => licenceOf(folder, files));
      writeFileSync(join(ROOT, "dist", "LICENSES.txt"), all.join(`\n${"-".repeat(80)}\n\n`));
    },
  };
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
    chunkSizeWarningLimit: 2000,
    rollupOptions: { input: PAGES.map((page) => join(ROOT, page)) },
  },
  plugins: [noteLicences(), noteSources],
});
