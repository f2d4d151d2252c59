import { LowbitError, type ChatMessage, type ChatResult, type ChatStream, type Model } from 'lowbit';
import { byId, copyButton, el, say } from './dom.js';
import { bytes, engine, milliseconds, rate } from './format.js';
import { addCopyButtons, showMarkdown } from './markdown.js';
import type { Settings } from './settings.js';

const SUGGESTIONS = [
  'What is the capital of France?',
  'What is photosynthesis?',
  'Why do we have seasons?',
  'Give me three ideas for dinner.',
];

/** The answer is drawn this often at most. */
const FRAME_MS = 50;

/** The conversation and the field under it. */
export class Chat {
  readonly #scroller = byId('main');
  readonly #list = byId('messages');
  readonly #prompt = byId<HTMLTextAreaElement>('prompt');
  readonly #send = byId<HTMLButtonElement>('send');
  readonly #stop = byId('stop');
  readonly #stats = byId('stats');
  #messages: ChatMessage[] = [];
  #model: Model | undefined;
  #answer: ChatStream | undefined;

  constructor(private readonly settings: Settings) {
    byId('compose').addEventListener('submit', (event) => {
      event.preventDefault();
      this.#submit(this.#prompt.value);
    });
    this.#prompt.addEventListener('input', () => this.#update());
    this.#prompt.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#submit(this.#prompt.value);
    });
    this.#stop.addEventListener('click', () => this.#answer?.abort());
    addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && !document.querySelector('dialog[open]')) this.#answer?.abort();
    });
    byId('suggestions').append(
      ...SUGGESTIONS.map((text) => {
        const button = el('button', { type: 'button', textContent: text });
        button.addEventListener('click', () => this.#submit(text));
        return button;
      }),
    );
  }

  /** Talks with this model from now on. */
  use(model: Model | undefined): void {
    this.#answer?.abort();
    this.#model = model;
    this.#update();
    if (model) this.#showMemory();
  }

  /** Starts a new conversation. */
  clear(): void {
    this.#answer?.abort();
    this.#messages = [];
    this.#list.replaceChildren();
    this.#update();
    this.focus();
  }

  focus(): void {
    this.#prompt.focus({ preventScroll: true });
  }

  async #submit(text: string): Promise<void> {
    const content = text.trim();
    if (!this.#model || this.#answer || content === '') return;
    this.#prompt.value = '';
    this.#messages.push({ role: 'user', content });
    this.#list.append(el('li', { className: 'message user', textContent: content }));
    await this.#reply(this.#model);
  }

  async #reply(model: Model, another = false): Promise<void> {
    const body = el('div', { className: 'body' });
    const item = el('li', { className: 'message assistant writing' }, body);
    this.#list.append(item);
    const { system } = this.settings;
    const messages = system === '' ? this.#messages : [{ role: 'system', content: system }, ...this.#messages];
    const answer = (this.#answer = model.chat(messages, this.settings.generation(another)));
    document.body.dataset['busy'] = '';
    this.#update();
    this.#toEnd(true);
    const drawing = new Drawing(body, () => this.#toEnd(false));
    let problem = '';
    try {
      for await (const text of answer) drawing.add(text);
    } catch (error) {
      const stopped = error instanceof LowbitError && error.code === 'aborted';
      if (!stopped) problem = error instanceof Error ? error.message : String(error);
    }
    drawing.finish();
    addCopyButtons(body);
    item.classList.remove('writing');
    delete document.body.dataset['busy'];
    this.#answer = undefined;
    if (!item.isConnected) return this.#update(); // a new conversation was started
    this.#messages.push({ role: 'assistant', content: drawing.text });
    const result = await answer.result.catch(() => undefined);
    item.append(this.#meta(drawing.text, result));
    if (problem) item.append(el('p', { className: 'notice error', textContent: problem }));
    byId('announcer').textContent = problem || `Answer: ${body.textContent ?? ''}`;
    this.#update();
    this.#showMemory(result);
    this.#toEnd(false);
  }

  /** What stands under an answer. */
  #meta(text: string, result: ChatResult | undefined): HTMLElement {
    const again = el('button', { type: 'button', textContent: 'Again' });
    again.addEventListener('click', () => this.#again());
    const facts = result
      ? `${result.tokens.length} tokens · ${rate(result.decodeTokensPerSecond)} tok/s · first after ${milliseconds(result.firstTokenMs)}` +
        (result.finishReason === 'stop' || result.finishReason === 'stop-string' ? '' : ` · ${ENDINGS[result.finishReason] ?? result.finishReason}`)
      : 'stopped';
    return el('div', { className: 'meta' }, copyButton(() => text), again, el('span', {}, facts));
  }

  /** Answers the last question once more. */
  async #again(): Promise<void> {
    if (!this.#model || this.#answer) return;
    while (this.#messages.at(-1)?.role === 'assistant') this.#messages.pop();
    this.#list.lastElementChild?.remove();
    await this.#reply(this.#model, true);
  }

  async #showMemory(result?: ChatResult): Promise<void> {
    const model = this.#model;
    const memory = await model?.memory().catch(() => undefined);
    if (!model || !memory) return say(this.#stats, '');
    const parts = [engine(model.info), bytes(memory.total)];
    if (result) parts.unshift(`${rate(result.decodeTokensPerSecond)} tok/s`);
    say(this.#stats, parts.join(' · '));
  }

  #update(): void {
    const busy = this.#answer !== undefined;
    this.#send.hidden = busy;
    this.#stop.hidden = !busy;
    this.#send.disabled = !this.#model || this.#prompt.value.trim() === '';
    byId('empty').hidden = this.#messages.length > 0;
    for (const old of this.#list.querySelectorAll('.message:not(:last-child) .meta button:nth-child(2)')) old.remove();
  }

  /** Scrolls to the end, unless the reader has scrolled away from it. */
  #toEnd(always: boolean): void {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    if (always || scrollHeight - scrollTop - clientHeight < 120) this.#scroller.scrollTop = scrollHeight;
  }
}

const ENDINGS: Record<string, string> = { length: 'cut at the longest answer', context: 'the context is full' };

/** Draws a growing text as Markdown, not more often than is of use. */
class Drawing {
  text = '';
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly element: HTMLElement,
    private readonly drawn: () => void,
  ) {}

  add(text: string): void {
    this.text += text;
    this.#timer ??= setTimeout(() => this.#draw(), FRAME_MS);
  }

  finish(): void {
    clearTimeout(this.#timer);
    this.#draw();
  }

  #draw(): void {
    this.#timer = undefined;
    showMarkdown(this.element, this.text);
    this.drawn();
  }
}
