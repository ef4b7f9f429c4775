// The columns of a view.
import { Text } from "./basic";

export function Fields({ fields, keyNames }: {
  fields: { name: string; type: string; nullable: boolean }[];
  keyNames: string[];
}) {
  return (
    <table class="list fields">
      <thead><tr><th scope="col">Column</th><th scope="col">Type</th><th scope="col">NULL</th></tr></thead>
      <tbody>
        {fields.map((field) => (
          <tr key={field.name}>
            <td class="name"><Text>{field.name}</Text>{keyNames.includes(field.name) && <span class="tag">key</span>}</td>
            <td class="mono"><Text>{field.type}</Text></td>
            <td class="dim">{field.nullable ? "may be" : "never"}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
