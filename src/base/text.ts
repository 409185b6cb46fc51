// text.ts - escapes untrusted text before it is shown. Pure.
//
// Other programs write leases, annotations, claims, the configuration and the answers of servers. Control characters steer a terminal
// (ECMA-48: C0, DEL, C1). Bidirectional controls change the order in which a line is read (Unicode UAX 9). Invisible characters (format
// characters, tags, variation selectors: UAX 44) make two names look equal. A line break makes one line look like two.

/** The characters that are escaped in all texts, including unpaired surrogates. Tab and line break are escaped only within a line. */
const STEERING = String.raw`\0-\x08\x0B\x0C\x0E-\x1F\x7F-\x9F\u2028\u2029\p{Cf}\p{Default_Ignorable_Code_Point}\p{Surrogate}`
const IN_A_LINE = new RegExp(String.raw`[${STEERING}\t\n\r]`, 'gu')
const IN_A_TEXT = new RegExp(String.raw`[${STEERING}]|\r(?!\n)`, 'gu')

const SHORT: Readonly<Record<string, string>> = { '\n': String.raw`\n`, '\r': String.raw`\r`, '\t': String.raw`\t` }
/** Escapes a character as JSON does. A character beyond U+FFFF becomes two escapes. */
const escapeOf = (letter: string): string =>
  SHORT[letter] ??
  Array.from({ length: letter.length }, (_, at) => letter.charCodeAt(at).toString(16).padStart(4, '0'))
    .map((code) => String.raw`\u${code}`)
    .join('')

/** Escapes text that is part of a line. */
export const printable = (text: string): string => text.replaceAll(IN_A_LINE, escapeOf)

/** Escapes text of several lines, and keeps tabs and line breaks. JSON keeps its meaning, because only its strings are changed. */
export const printableLines = (text: string): string => text.replaceAll(IN_A_TEXT, escapeOf)

/** Formats a value as one line of JSON without terminal sequences. */
export const jsonLine = (value: unknown): string => `${printableLines(JSON.stringify(value))}\n`

/** Parses JSON for display: all its texts and names are escaped as parts of a line. */
export const parseToShow = (text: string): unknown =>
  JSON.parse(text, (_name, value: unknown) => {
    if (typeof value === 'string') return printable(value)
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return value
    const names = Object.keys(value)
    if (names.every((name) => printable(name) === name)) return value
    return Object.fromEntries(Object.entries(value).map(([name, member]) => [printable(name), member]))
  })
