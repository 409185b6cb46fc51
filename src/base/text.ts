// text.ts - text of others, on its way to whoever reads it: what would steer a terminal, or mislead the eye, is escaped. Pure.
//
// Leases, annotations, claims, the configuration and what servers answer are others' to write. A terminal obeys control characters
// (ECMA-48: C0, DEL, C1), bidirectional controls change the order in which a line is read (Unicode UAX 9), what is invisible (format
// characters, tags, variation selectors: UAX 44) makes two names look like one, and a line break makes one line look like two.

/**
 * Characters that steer a terminal or mislead the eye, but for tab and line break. A surrogate without its other half
 * is one too.
 */
const STEERING = String.raw`\0-\x08\x0B\x0C\x0E-\x1F\x7F-\x9F\u2028\u2029\p{Cf}\p{Default_Ignorable_Code_Point}\p{Surrogate}`
const IN_A_LINE = new RegExp(String.raw`[${STEERING}\t\n\r]`, 'gu')
const IN_A_TEXT = new RegExp(String.raw`[${STEERING}]|\r(?!\n)`, 'gu')

const SHORT: Readonly<Record<string, string>> = { '\n': String.raw`\n`, '\r': String.raw`\r`, '\t': String.raw`\t` }
/** Escapes a character as JSON does: one beyond U+FFFF becomes both its halves. */
const escapeOf = (letter: string): string =>
  SHORT[letter] ??
  Array.from({ length: letter.length }, (_, at) => letter.charCodeAt(at).toString(16).padStart(4, '0'))
    .map((code) => String.raw`\u${code}`)
    .join('')

/** `text` as a part of one line. */
export const printable = (text: string): string => text.replaceAll(IN_A_LINE, escapeOf)

/** `text` in its lines, whose tabs and breaks are ours. What is JSON stays the same JSON: none of it stands outside of a string. */
export const printableLines = (text: string): string => text.replaceAll(IN_A_TEXT, escapeOf)

/** JSON of one line, that any program reads as it was and no terminal obeys. */
export const jsonLine = (value: unknown): string => `${printableLines(JSON.stringify(value))}\n`

/** Parses JSON that is to be shown: each of its texts is made one part of a line. */
export const parseToShow = (text: string): unknown =>
  JSON.parse(text, (_name, value: unknown) => {
    if (typeof value === 'string') return printable(value)
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return value
    const names = Object.keys(value)
    if (names.every((name) => printable(name) === name)) return value
    return Object.fromEntries(Object.entries(value).map(([name, member]) => [printable(name), member]))
  })
