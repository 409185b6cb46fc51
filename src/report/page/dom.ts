// dom.ts - creates and changes elements of the page. Text is set as text and never as markup, so text from a peer or
// from the log cannot become a script.

export type Child = Node | string
type Props = Readonly<Record<string, string>>

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: readonly Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, value)
  element.append(...children)
  return element
}

/** Splits text at backticks, and turns the parts between backticks into `code` elements. */
export const proseOf = (text: string): readonly Child[] =>
  text.split('`').map((part, at) => (at % 2 === 0 ? part : h('code', {}, part)))

/** Returns the element of index.html with this id. Throws Error if the element does not exist or has another type. */
export function elementOf<T extends Element>(kind: new () => T, id: string): T {
  const element = document.getElementById(id)
  if (!(element instanceof kind)) throw new Error(`#${id} does not exist or has another type`)
  return element
}

export const byId = (id: string): HTMLElement => elementOf(HTMLElement, id)

/** Sets an element's text only if it differs, because each change makes screen readers speak and clears a selection. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text
}

export function setAttribute(element: Element, name: string, value: string): void {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value)
}

/** The element that shows one item of a list, and the function that updates it. */
export interface Part<T> {
  readonly element: HTMLElement
  show(item: T, at: number): void
}

/**
 * Returns a function that makes the children of `parent` match `items`. An item with the same key keeps its element,
 * and thus the keyboard focus.
 */
export function createList<T>(
  parent: HTMLElement,
  keyOf: (item: T) => string,
  create: (item: T) => Part<T>,
): (items: readonly T[]) => void {
  let parts = new Map<string, Part<T>>()
  return (items) => {
    const focused = parent.contains(document.activeElement) ? (document.activeElement as HTMLElement) : undefined
    const next = new Map<string, Part<T>>()
    let place = parent.firstElementChild
    items.forEach((item, at) => {
      const key = keyOf(item)
      const part = parts.get(key) ?? create(item)
      parts.delete(key)
      next.set(key, part)
      part.show(item, at)
      if (part.element === place) place = place.nextElementSibling
      else parent.insertBefore(part.element, place)
    })
    for (const { element } of parts.values()) element.remove()
    parts = next
    // Restore the keyboard focus, which an element loses when it is moved.
    if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true })
  }
}

/** Fills a `dl` element with rows. Returns a function that sets the name and the text of each row. */
export function createFacts(parent: HTMLElement): (facts: readonly (readonly [name: string, text: string])[]) => void {
  return createList(
    parent,
    ([name]) => name,
    ([name]) => {
      const text = h('dd')
      const element = h('div', {}, h('dt', {}, name), text)
      return { element, show: ([, now]) => setText(text, now) }
    },
  )
}
