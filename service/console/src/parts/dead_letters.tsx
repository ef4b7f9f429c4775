// Malformed records of a source, each whole, to retry or drop.
import { useState } from "preact/hooks";
import { call, mayOperate, offers } from "../lib/api";
import { ago, plural, shortened } from "../lib/format";
import { usePolled, useWork } from "../lib/use";
import { ProblemNote, Skeleton, Text } from "./basic";
import { Confirm } from "./confirm";
import { tell } from "./toasts";
import { useOpened } from "./values";

interface Letter {
  source: string;
  relation: string;
  position: string;
  group: string;
  code: string;
  reason: string;
  key: string | null;
  value: string | null;
  desired: string | null;
  first_seen: string;
}

const PAGE = 50;

export function DeadLetters({ source, relation = "" }: { source: string; relation?: string }) {
  const path = `/dead-letters?source=${encodeURIComponent(source)}&relation=${encodeURIComponent(relation)}&limit=${PAGE}`;
  const { value, problem, again } = usePolled<{ dead_letters: Letter[] }>(path, 3000);
  const work = useWork();
  const { dialog, open } = useOpened();
  const [isConfirming, setConfirming] = useState(false);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  if (problem) return <ProblemNote problem={problem} />;
  if (!value) return <Skeleton />;
  const letters = value.dead_letters;
  if (!letters.length) return <p class="nothing">None left.</p>;
  const idOf = (letter: Letter): string => `${letter.relation} ${letter.position}`;
  const choose = async (action: "retry" | "drop"): Promise<void> => {
    const picked = letters.filter((letter) => chosen.has(idOf(letter)));
    const byRelation = Map.groupBy(picked, (letter) => letter.relation);
    const bodies = picked.length
      ? [...byRelation].map(([name, some]) => ({ source, relation: name, positions: some.map((letter) => letter.position) }))
      : [{ source, relation, positions: [] }];
    let total = 0;
    for (const body of bodies) {
      total += (await call<{ count: number }>("POST", `/dead-letters/${action}`, body)).count;
    }
    tell(action === "retry" ? `${plural(total, "record")} will be tried again` : `${plural(total, "record")} dropped`);
    setChosen(new Set());
    again();
  };
  const turn = (letter: Letter): void => {
    const next = new Set(chosen);
    if (!next.delete(idOf(letter))) next.add(idOf(letter));
    setChosen(next);
  };
  const which = chosen.size ? `${chosen.size} chosen` : "all";
  return (
    <>
      {mayOperate() && offers("POST /dead-letters/retry") && (
        <p class="actions">
          <button type="button" disabled={work.isBusy} onClick={() => void work.run(() => choose("retry"))}>Retry {which}</button>
          <button type="button" class="danger" onClick={() => setConfirming(true)}>Drop {which}</button>
        </p>
      )}
      {work.problem && <ProblemNote problem={work.problem} />}
      <div class="scroll" tabIndex={0} role="region" aria-label="Rows of dead letters">
        <table class="rows">
          <thead>
            <tr><th scope="col"><span class="unseen">choose</span></th><th scope="col">Position</th><th scope="col">Why</th><th scope="col">Record</th><th scope="col">Since</th></tr>
          </thead>
          <tbody>
            {letters.map((letter) => (
              <tr key={idOf(letter)}>
                <td>
                  <input type="checkbox" aria-label={`choose ${letter.position}`} checked={chosen.has(idOf(letter))} onChange={() => turn(letter)} />
                </td>
                <td class="mono"><Text>{`${letter.relation} ${letter.position}`}</Text>{letter.desired && <span class="tag">{letter.desired}</span>}</td>
                <td><Text>{letter.reason}</Text></td>
                <td>
                  {letter.value === null ? <span class="null">none</span> : (
                    <button type="button" class="long mono" onClick={() => open(letter.value ?? "", letter.position)}>
                      <Text>{shortened(letter.value, 80)}</Text>
                    </button>
                  )}
                </td>
                <td class="dim">{ago(letter.first_seen)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {letters.length === PAGE && <p class="dim">The first {PAGE} are shown.</p>}
      {dialog}
      {isConfirming && (
        <Confirm title={`Drop ${which}?`} action="Drop them" run={() => choose("drop")} onClose={() => setConfirming(false)}>
          <p>These records are deleted. No view will contain them.</p>
        </Confirm>
      )}
    </>
  );
}
