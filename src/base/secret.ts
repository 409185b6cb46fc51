// secret.ts - wraps secret texts and bytes, so that they are printed as <hidden>. Only `reveal` returns the value.

import { createHmac, randomBytes } from 'node:crypto'

export const HIDDEN = '<hidden>'
/**
 * A random key that differs in each process. Secrets are hashed with this key, so that a secret cannot be guessed from
 * its hash.
 */
const salt = randomBytes(32)

export class Secret {
  readonly #value: string
  readonly #show: (value: string) => string
  /** A hash of the secret with a random key. isDeepStrictEqual ignores private members, so it compares secrets by this member. */
  readonly identity: string

  /**
   * Wraps the secret text `value`. `show` returns the text to print instead, if only a part of the value is secret; by default <hidden>
   * is printed.
   */
  constructor(value: string, show: (value: string) => string = () => HIDDEN) {
    this.#value = value
    this.#show = show
    this.identity = createHmac('sha256', salt).update(value).digest('base64')
  }

  /** Returns the secret value. Only the function that needs the value may call this, and must not print or log it. */
  reveal(): string {
    return this.#value
  }

  /** Makes a secret with another value, which is printed by the same rule as this secret. */
  with(value: string): Secret {
    return new Secret(value, this.#show)
  }

  get isEmpty(): boolean {
    return this.#value === ''
  }

  /** Returns the text to print: that of `show`, by default <hidden>, or an empty text if the value is empty. */
  toString(): string {
    return this.isEmpty ? '' : this.#show(this.#value)
  }

  toJSON(): string {
    return this.toString()
  }

  /** Returns the text to print for util.inspect, which console.log and reports of uncaught exceptions use. */
  [Symbol.for('nodejs.util.inspect.custom')](): string {
    return this.toString()
  }
}

/** Wraps secret bytes, such as a key. Unlike a text, bytes can be overwritten with zeros (wiped) when they are no longer needed. */
export class SecretBytes {
  readonly #bytes: Uint8Array

  /** Wraps the given bytes without a copy, so that wiping them removes the only copy in memory. */
  constructor(bytes: Uint8Array) {
    this.#bytes = bytes
  }

  /** Returns the secret bytes, which are zeros after wiping. The caller must not print or store them. */
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
 * Matches the position in a word at which the user name of a URL may begin: after `//`, or at the start of a URL without a scheme. In
 * `label:http://...` the label is not taken for a user name.
 */
const USER = /\/\/|(?:^|["'`=])[^"'`=/:]+:(?!["'`]?(?:[a-z][a-z\d+.-]*:)?\/\/)/i

/**
 * Removes user name and password from a word that may be a URL (RFC 3986 section 3.2.1). They end at the last @ of the word, because a
 * password may contain an unescaped @ or slash.
 */
function wordWithoutUser(word: string): string {
  const end = word.lastIndexOf('@')
  const [match] = end < 0 ? [] : [USER.exec(word.slice(0, end))]
  if (!match) return word
  const [start] = match
  const kept = start === '//' ? start : (/^["'`=]/.exec(start)?.[0] ?? '')
  return word.slice(0, match.index) + kept + word.slice(end + 1)
}

/** Removes user names and passwords from all URLs in a text. It takes linear time. */
export const withoutUser = (text: string): string => text.replaceAll(/[^\s,]+/g, wordWithoutUser)

/** Removes user names and passwords from a comma-separated list of URLs. A password may contain commas. */
function urlsWithoutUser(text: string): string {
  const shown: string[] = []
  for (const url of text.split(',')) {
    const [scheme = ''] = /^\s*(?:[a-z][a-z\d+.-]*:)?\/\//i.exec(url) ?? []
    const end = url.lastIndexOf('@')
    const user = url.slice(scheme.length, end + 1)
    // An @ in this part of the list, without a scheme and without a colon before the @, ends a password that contains a
    // comma. So the parts before it belong to the password and must not be shown.
    if (end >= 0 && scheme === '' && !user.includes(':')) shown.length = 0
    shown.push(end < 0 ? url : scheme + url.slice(end + 1))
  }
  return shown.join(',')
}

/** Makes a secret of a comma-separated list of URLs. It is printed without user names and passwords. */
export const secretUrls = (text: string): Secret => new Secret(text, urlsWithoutUser)
