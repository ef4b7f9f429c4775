// Who may read the rows of a source: its declarer, the service, and roles by grant.
import { useState } from "preact/hooks";
import { call, mayOperate, offers } from "../lib/api";
import { ago } from "../lib/format";
import { useWork } from "../lib/use";
import { ProblemNote, Text } from "./basic";
import { tell } from "./toasts";

export interface Grant {
  /** null: all relations, also later ones. */
  relation: string | null;
  role: string;
  granted_by: string;
  granted_at: string;
}

export function SourceReaders({ source, relations, declaredBy, grants, again }: {
  source: string;
  relations: string[];
  declaredBy: string | null;
  grants: Grant[];
  again: () => void;
}) {
  const [role, setRole] = useState("");
  const [relation, setRelation] = useState("");
  const { isBusy, problem, run } = useWork();
  const mayGrant = mayOperate() && offers("POST /sources/{}/grants");
  const path = `/sources/${encodeURIComponent(source)}/grants`;
  const submit = (event: Event): void => {
    event.preventDefault();
    void run(async () => {
      await call("POST", path, { role: role.trim(), relation });
      tell(`Granted ${titleOf(source, relation)} to ${role.trim()}`);
      setRole("");
      again();
    });
  };
  const revoke = (grant: Grant): void => {
    const query = new URLSearchParams({ role: grant.role, relation: grant.relation ?? "" });
    void run(async () => {
      await call("DELETE", `${path}?${query}`);
      tell(`Revoked ${titleOf(source, grant.relation)} from ${grant.role}`);
      again();
    });
  };
  return (
    <section aria-labelledby="readers">
      <div class="section-head">
        <h2 id="readers">Who may read it</h2>
        <span class="dim">{declaredBy ? <>declared by <Text>{declaredBy}</Text></> : "declared by the service"}</span>
      </div>
      {grants.length ? (
        <table class="fields" aria-label="Grants">
          <thead><tr><th>Relation</th><th>Role</th><th>Granted by</th><th /></tr></thead>
          <tbody>
            {grants.map((grant) => (
              <tr key={`${grant.relation ?? ""} ${grant.role}`}>
                <td>{grant.relation === null ? "all" : <Text>{grant.relation}</Text>}</td>
                <td><Text>{grant.role}</Text></td>
                <td><Text>{grant.granted_by}</Text> <span class="dim">{ago(grant.granted_at)}</span></td>
                <td>
                  {mayGrant && (
                    <button
                      type="button"
                      class="danger small"
                      disabled={isBusy}
                      aria-label={`Revoke ${titleOf(source, grant.relation)} from ${grant.role}`}
                      onClick={() => revoke(grant)}
                    >
                      Revoke
                    </button>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : <p class="dim">Only its declarer and the service. Views that read it have rights of their own.</p>}
      {mayGrant && (
        <form onSubmit={submit}>
          <select aria-label="Relation to grant" value={relation} onChange={(event) => setRelation(event.currentTarget.value)}>
            <option value="">all relations</option>
            {relations.map((name) => <option key={name} value={name}>{name}</option>)}
          </select>{" "}
          <input type="text" aria-label="Role to grant to" placeholder="role, or public" value={role} spellcheck={false} onInput={(event) => setRole(event.currentTarget.value)} />{" "}
          <button type="submit" disabled={isBusy || !role.trim()}>Grant</button>
        </form>
      )}
      {problem && <ProblemNote problem={problem} />}
    </section>
  );
}

function titleOf(source: string, relation: string | null): string {
  return relation ? `${source}.${relation}` : source;
}
