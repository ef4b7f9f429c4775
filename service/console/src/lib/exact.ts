// Rows as they were sent. JSON's numbers may be longer than a double holds (a bigint, a numeric):
// such a number stays text, so that no digit is lost.

type Reviver = (this: unknown, key: string, value: unknown, context?: { source?: string }) => unknown;

const keepDigits: Reviver = (_key, value, context) => {
  const source = context?.source;
  return typeof value === "number" && source !== undefined && String(value) !== source ? source : value;
};

export function parseRows<T>(text: string): T {
  return JSON.parse(text, keepDigits as Parameters<typeof JSON.parse>[1]) as T;
}
