// Completed actions, shown for a few seconds.
import { signal } from "@preact/signals";

interface Toast {
  id: number;
  text: string;
  tone: string;
}

const toasts = signal<Toast[]>([]);
let last = 0;

export function tell(text: string, tone = "good"): void {
  const id = ++last;
  toasts.value = [...toasts.value.slice(-2), { id, text, tone }];
  setTimeout(() => {
    toasts.value = toasts.value.filter((toast) => toast.id !== id);
  }, 5000);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((toast) => (
        <p key={toast.id} class={toast.tone}><bdi>{toast.text}</bdi></p>
      ))}
    </div>
  );
}
