/** The element with this id, which the page has. */
export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const element = document.getElementById(id);
  if (!element) throw new Error(`no element #${id}`);
  return element as T;
}

/** A new element with properties and children. */
export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Partial<HTMLElementTagNameMap[K]> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** Shows a text in an element, or hides the element when there is none. */
export function say(element: HTMLElement, text: string): void {
  element.textContent = text;
  element.hidden = text === '';
}

/** A button that copies a text and says so. */
export function copyButton(text: () => string): HTMLButtonElement {
  const button = el('button', { type: 'button', textContent: 'Copy' });
  button.addEventListener('click', async () => {
    const done = await navigator.clipboard.writeText(text()).then(
      () => 'Copied',
      () => 'Not allowed',
    );
    button.textContent = done;
    setTimeout(() => (button.textContent = 'Copy'), 1500);
  });
  return button;
}
