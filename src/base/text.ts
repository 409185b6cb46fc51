// text.ts - escapes untrusted text before it is shown. Pure.
//
// Programs other than weft can write leases, annotations, host names, the configuration and the answers of servers.
// Control characters steer a terminal (ECMA-48: C0, DEL, C1). Bidirectional controls change the order in which a line
// is read (Unicode UAX 9). Invisible characters (format characters, tags, variation selectors: UAX 44) make two names
// look equal. A line break makes one line look like two.

/**
 * The characters that weft escapes in every untrusted text, including unpaired surrogates. In text that must stay on
 * one line, weft also escapes tabs and line breaks.
 */
const STEERING = String.raw`\0-\x08\x0B\x0C\x0E-\x1F\x7F-\x9F\u2028\u2029\p{Cf}\p{Default_Ignorable_Code_Point}\p{Surrogate}`
const IN_A_LINE = new RegExp(String.raw`[${STEERING}\t\n\r]`, 'gu')
const IN_A_TEXT = new RegExp(String.raw`[${STEERING}]|\r(?!\n)`, 'gu')

const SHORT: Readonly<Record<string, string>> = { '\n': String.raw`\n`, '\r': String.raw`\r`, '\t': String.raw`\t` }
/** Escapes a character as JSON does, by a backslash and `uXXXX`. A character above U+FFFF becomes two escapes. */
const escapeOf = (letter: string): string =>
  SHORT[letter] ??
  Array.from({ length: letter.length }, (_, at) => letter.charCodeAt(at).toString(16).padStart(4, '0'))
    .map((code) => String.raw`\u${code}`)
    .join('')

/** Escapes untrusted text that is printed within one line. */
export const printable = (text: string): string => text.replaceAll(IN_A_LINE, escapeOf)

/**
 * Escapes untrusted text of several lines, but keeps its tabs and line breaks. JSON text keeps its meaning, because the
 * escaped characters occur only within JSON's strings.
 */
export const printableLines = (text: string): string => text.replaceAll(IN_A_TEXT, escapeOf)

/**
 * Formats a value as one line of JSON in which control characters are escaped, so that the line cannot steer a
 * terminal.
 */
export const jsonLine = (value: unknown): string => `${printableLines(JSON.stringify(value))}\n`

/**
 * Parses untrusted JSON for display. All texts and member names of the result are escaped for printing within one line.
 */
export const parseToShow = (text: string): unknown =>
  JSON.parse(text, (_name, value: unknown) => {
    if (typeof value === 'string') return printable(value)
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return value
    const names = Object.keys(value)
    if (names.every((name) => printable(name) === name)) return value
    return Object.fromEntries(Object.entries(value).map(([name, member]) => [printable(name), member]))
  })
