// The rows of one answer, as they came.
import { Text } from "./basic";
import { type Column, isNumber, useOpened, Value } from "./values";

export function ResultTable({ fields, rows, label }: { fields: Column[]; rows: Record<string, unknown>[]; label: string }) {
  const { dialog, open } = useOpened();
  return (
    <>
      <div class="scroll" tabIndex={0} role="region" aria-label={label}>
        <table class="rows">
          <thead>
            <tr>
              {fields.map((field, i) => (
                <th key={i} scope="col" class={isNumber(field) ? "number" : ""} title={field.type}><Text>{field.name}</Text></th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row, i) => (
              <tr key={i}>
                {fields.map((field, at) => (
                  <td key={at} class={isNumber(field) ? "number" : ""}><Value value={row[field.name]} column={field} onOpen={open} /></td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {dialog}
    </>
  );
}
