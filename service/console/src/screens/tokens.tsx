// The tokens of the service, for admins: created, shown once, revoked.
import { useState } from "preact/hooks";
import { bodySchema, call, keepToken, token as ownToken } from "../lib/api";
import { ago } from "../lib/format";
import { useOptions } from "../lib/options";
import { usePolled, useWork } from "../lib/use";
import { Copy, Empty, ProblemNote, Skeleton, Status, Text } from "../parts/basic";
import { Confirm } from "../parts/confirm";
import { Dialog } from "../parts/dialog";
import { OptionsForm } from "../parts/options_form";
import { tell } from "../parts/toasts";

interface TokenFacts {
  id: string;
  name: string;
  role: string;
  db_role: string | null;
  created_by: string;
  created_at: string;
  last_used_at: string | null;
  expires_at: string | null;
  revoked_at: string | null;
}

const EVERY_MS = 5000;

const isUsable = (one: TokenFacts): boolean => !one.revoked_at && !(one.expires_at && Date.parse(one.expires_at) < Date.now());

const pathOf = (name: string): string => `/tokens/${encodeURIComponent(name)}`;

export function TokensScreen() {
  const { value: reported, problem, again } = usePolled<{ tokens: TokenFacts[] }>("/tokens", EVERY_MS);
  const [isAdding, setAdding] = useState(false);
  const [made, setMade] = useState<{ token: string; facts: TokenFacts } | null>(null);
  const tokens = (reported?.tokens ?? []).toSorted((a, b) => Number(isUsable(b)) - Number(isUsable(a)));
  const isFirst = reported !== null && !tokens.length;
  return (
    <div class="screen">
      <div class="title">
        <h1>Tokens</h1>
        {!isAdding && reported && <span class="end"><button type="button" class="primary" onClick={() => setAdding(true)}>New token</button></span>}
      </div>
      {!reported && (problem ? <ProblemNote problem={problem} /> : <Skeleton rows={5} wide />)}
      {isAdding && (
        <NewToken
          isFirst={isFirst}
          onMade={(answer) => {
            setMade(answer);
            setAdding(false);
            again();
          }}
          onClose={() => setAdding(false)}
        />
      )}
      {isFirst && !isAdding && (
        <Empty title="No token yet">
          <p>
            Everybody who reaches the service on this machine may do everything. With the first token, which is an
            admin's, every request needs one.
          </p>
        </Empty>
      )}
      {tokens.length > 0 && (
        <table class="list">
          <thead>
            <tr>
              <th scope="col" class="name">Token</th><th scope="col">Role</th><th scope="col" class="wide-only">Created</th>
              <th scope="col" class="wide-only">Last used</th><th scope="col">Status</th><th scope="col"><span class="unseen">Actions</span></th>
            </tr>
          </thead>
          <tbody>{tokens.map((one) => <Row key={one.id} facts={one} again={again} />)}</tbody>
        </table>
      )}
      {made && <Shown made={made} onClose={() => setMade(null)} />}
    </div>
  );
}

function Row({ facts, again }: { facts: TokenFacts; again: () => void }) {
  const [isConfirming, setConfirming] = useState(false);
  const revoke = async (): Promise<void> => {
    await call("DELETE", pathOf(facts.name));
    tell(`Revoked ${facts.name}`);
    again();
  };
  return (
    <tr>
      <td class="name"><Text>{facts.name}</Text></td>
      <td>{facts.role}{facts.db_role && <span class="under dim">as <Text>{facts.db_role}</Text></span>}</td>
      <td class="wide-only">{ago(facts.created_at)} <span class="under dim">by <Text>{facts.created_by}</Text></span></td>
      <td class="wide-only">{facts.last_used_at ? ago(facts.last_used_at) : "never"}</td>
      <td><Status status={standing(facts)} /></td>
      <td class="number">
        {isUsable(facts) && <button type="button" class="danger small" aria-label={`Revoke ${facts.name}`} onClick={() => setConfirming(true)}>Revoke</button>}
        {isConfirming && (
          <Confirm title="Revoke this token?" action="Revoke it" run={revoke} onClose={() => setConfirming(false)}>
            <p><strong><Text>{facts.name}</Text></strong> is refused within a second, everywhere. It cannot be used again.</p>
          </Confirm>
        )}
      </td>
    </tr>
  );
}

function standing(facts: TokenFacts): string {
  if (facts.revoked_at) return "revoked";
  if (!isUsable(facts)) return "expired";
  return facts.expires_at ? `valid until ${facts.expires_at.slice(0, 10)}` : "valid";
}

function NewToken({ isFirst, onMade, onClose }: {
  isFirst: boolean;
  onMade: (answer: { token: string; facts: TokenFacts }) => void;
  onClose: () => void;
}) {
  const schema = bodySchema("CreateToken");
  const form = useOptions(schema, isFirst ? { role: "admin" } : undefined);
  const { isBusy, problem, run } = useWork();
  const refusal = form.placeOf(problem);
  const submit = (event: Event): void => {
    event.preventDefault();
    void run(async () => {
      const answer = await call<{ token: string; facts: TokenFacts }>("POST", "/tokens", form.json());
      // From the first token on this tab needs one too.
      if (isFirst && !ownToken.value) keepToken(answer.token);
      onMade(answer);
    });
  };
  return (
    <form class="options-form adding" onSubmit={submit} noValidate aria-label="New token">
      {isFirst && <p>This is the first token: it must be an admin's, and from now on every request needs one. This tab keeps it until you close the tab.</p>}
      <OptionsForm schema={schema} state={form.state} refusal={refusal} onState={form.setState} />
      {problem && !refusal && <ProblemNote problem={problem} />}
      <footer>
        <button type="button" onClick={onClose}>Cancel</button>
        <button type="submit" class="primary" disabled={isBusy}>Create token</button>
      </footer>
    </form>
  );
}

/** The token itself: the service has only its hash, so it is shown here and never again. */
function Shown({ made, onClose }: { made: { token: string; facts: TokenFacts }; onClose: () => void }) {
  return (
    <Dialog title={`Token ${made.facts.name}`} onClose={onClose}>
      <p>Copy it now: it is not shown again. Programs send it as <code>Authorization: Bearer</code>, or read it from <code>TIDEMARK_TOKEN</code>.</p>
      <pre class="value token-value" tabIndex={0}>{made.token}</pre>
      <footer><Copy text={made.token} label="Copy token" /> <button type="button" class="primary" onClick={onClose}>Done</button></footer>
    </Dialog>
  );
}
