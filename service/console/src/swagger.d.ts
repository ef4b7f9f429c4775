// What src/docs.ts takes of swagger-ui-dist, which has no types of its own.
declare module "swagger-ui-dist/swagger-ui-es-bundle.js" {
  interface SwaggerUI {
    (options: Record<string, unknown>): unknown;
    presets: { apis: unknown };
  }
  const bundle: SwaggerUI;
  export default bundle;
}
