// secret.ts - wraps secret texts and bytes, so that they are printed as <hidden>. Only `reveal` returns the value.

import { createHmac, randomBytes } from 'node:crypto'

export const HIDDEN = '<hidden>'
/**
 * A random key of this process for hashes of secrets. Without the key an attacker could confirm a guessed secret by its
 * hash.
 */
const salt = randomBytes(32)

export class Secret {
  readonly #value: string
  readonly #show: (value: string) => string
  /** True if the value is the JSON form of a number, an object or another value that is not a text. */
  readonly isJson: boolean
  /**
   * A hash of the secret with a random key. isDeepStrictEqual ignores private members, so it compares two secrets by
   * `identity`.
   */
  readonly identity: string

  /**
   * Wraps the secret text `value`. `show` returns the text that is printed instead, if only a part of the value is
   * secret; the default is <hidden>.
   */
  constructor(value: string, show: (value: string) => string = () => HIDDEN, isJson = false) {
    this.#value = value
    this.#show = show
    this.isJson = isJson
    this.identity = createHmac('sha256', salt).update(value).digest('base64')
  }

  /**
   * Returns the secret value. Only a function that needs the value may call `reveal`, and that function must not print
   * or log the value.
   */
  reveal(): string {
    return this.#value
  }

  /** Makes a secret with another value, which is printed by the same rule as this secret. */
  with(value: string): Secret {
    return new Secret(value, this.#show, this.isJson)
  }

  get isEmpty(): boolean {
    return this.#value === ''
  }

  /**
   * True if the value is not the secret itself, but the text that weft prints in its place. A configuration that weftd
   * saved to a file has such texts.
   */
  get isPlaceholder(): boolean {
    return this.#value.includes(HIDDEN)
  }

  toString(): string {
    return this.isEmpty ? '' : this.#show(this.#value)
  }

  toJSON(): string {
    return this.toString()
  }

  /**
   * Returns the text that util.inspect prints. console.log and Node.js's reports of uncaught exceptions use
   * util.inspect.
   */
  [Symbol.for('nodejs.util.inspect.custom')](): string {
    return this.toString()
  }
}

/**
 * Wraps secret bytes, such as a key. Unlike a text, bytes can be overwritten with zeros (wiped) when they are no longer
 * needed.
 */
export class SecretBytes {
  readonly #bytes: Uint8Array

  /** Wraps the given bytes without a copy, so that wiping them removes the only copy in memory. */
  constructor(bytes: Uint8Array) {
    this.#bytes = bytes
  }

  /** Returns the secret bytes, which are zeros after `wipe`. The caller must not print or store them. */
  reveal(): Uint8Array {
    return this.#bytes
  }

  wipe(): void {
    this.#bytes.fill(0)
  }

  toString(): string {
    return HIDDEN
  }

  toJSON(): string {
    return HIDDEN
  }

  [Symbol.for('nodejs.util.inspect.custom')](): string {
    return HIDDEN
  }
}

/**
 * Matches the position in a word at which the user name of a URL may begin: after `//`, or at the start of a URL
 * without a scheme. In `label:http://...` the label does not count as a user name.
 */
const USER = /\/\/|(?:^|["'`=])[^"'`=/:]+:(?!["'`]?(?:[a-z][a-z\d+.-]*:)?\/\/)/i

/**
 * Removes user name and password from a word that may be a URL (RFC 3986 section 3.2.1). User name and password end at
 * the last @ of the word, because a password may contain an unescaped @ or slash.
 */
function wordWithoutUser(word: string): string {
  const end = word.lastIndexOf('@')
  const [match] = end < 0 ? [] : [USER.exec(word.slice(0, end))]
  if (!match) return word
  const [start] = match
  const kept = start === '//' ? start : (/^["'`=]/.exec(start)?.[0] ?? '')
  return word.slice(0, match.index) + kept + word.slice(end + 1)
}

/**
 * Matches the text of a URL from `//` to the first @, which may be a user name and a password (RFC 3986 allows commas in
 * them), or the end of a list of URLs whose last one has a user name.
 */
const UNTIL_USER = /\/\/(?:(?!\/\/)[^\s"@])*@/g
/** Matches a host with an optional port, and not the beginning of a user name and a password. */
const HOST = /^(?:\[[^\]]*\]|[^:/]*)(?::\d*)?$/

/** Removes the user names and passwords of URLs that contain a comma, at which the callers split lists of URLs. */
const withoutCommas = (text: string): string =>
  text.replaceAll(UNTIL_USER, (whole) => {
    const parts = whole.slice(2).split(',')
    const last = parts.pop() ?? ''
    const isList = last.includes(':') && parts.every((part) => HOST.test(part))
    return parts.length === 0 || isList ? whole : '//'
  })

/** Removes user names and passwords from all URLs in a text, in linear time. */
export const withoutUser = (text: string): string => withoutCommas(text).replaceAll(/[^\s,]+/g, wordWithoutUser)

/** Removes user names and passwords from a comma-separated list of URLs. A password may contain commas. */
function urlsWithoutUser(text: string): string {
  const shown: string[] = []
  for (const url of withoutCommas(text).split(',')) {
    const [scheme = ''] = /^\s*(?:[a-z][a-z\d+.-]*:)?\/\//i.exec(url) ?? []
    const end = url.lastIndexOf('@')
    const user = url.slice(scheme.length, end + 1)
    // If a part of the list has an @, but no scheme, and no colon before the @, the part is the end of a password that
    // contains a comma. So the parts before it belong to the password too and must not be shown.
    if (end >= 0 && scheme === '' && !user.includes(':')) shown.length = 0
    shown.push(end < 0 ? url : scheme + url.slice(end + 1))
  }
  return shown.join(',')
}

/** Makes a secret of a comma-separated list of URLs, which is printed without user names and passwords. */
export const secretUrls = (text: string): Secret => new Secret(text, urlsWithoutUser)
