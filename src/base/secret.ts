// secret.ts - a secret, text or bytes: however it is printed, it prints as <hidden>; only `reveal` gives what it is.

import { createHmac, randomBytes } from 'node:crypto'

/** What is printed in place of a secret. */
export const HIDDEN = '<hidden>'
/** Belongs to this process alone: nobody else can find a secret by its hash. */
const salt = randomBytes(32)

export class Secret {
  readonly #value: string
  readonly #show: (value: string) => string
  /** isDeepStrictEqual sees no private member: by this one two secrets are equal when their values are. It tells nothing else. */
  readonly identity: string

  /** `show` is how it is printed, where part of it is none. */
  constructor(value: string, show: (value: string) => string = () => HIDDEN) {
    this.#value = value
    this.#show = show
    this.identity = createHmac('sha256', salt).update(value).digest('base64')
  }

  /** The secret itself: for the function that needs it, never for a text that is shown. */
  reveal(): string {
    return this.#value
  }

  /** Makes another secret that is printed as this one is. */
  with(value: string): Secret {
    return new Secret(value, this.#show)
  }

  get isEmpty(): boolean {
    return this.#value === ''
  }

  /** Prints as <hidden>, or empty: that there is a secret may be seen. */
  toString(): string {
    return this.isEmpty ? '' : this.#show(this.#value)
  }

  toJSON(): string {
    return this.toString()
  }

  /** Keeps the secret out of util.inspect, and so out of console.log and of the report of an uncaught exception. */
  [Symbol.for('nodejs.util.inspect.custom')](): string {
    return this.toString()
  }
}

/** Secret bytes, such as a key: unlike a text they can be wiped, by who made them, as soon as nobody needs them. */
export class SecretBytes {
  readonly #bytes: Uint8Array

  /** Takes the bytes over: they are not copied, so that nothing is left of them once they are wiped. */
  constructor(bytes: Uint8Array) {
    this.#bytes = bytes
  }

  /** The bytes themselves, zeros once they are wiped: for the function that needs them, never for what is shown or kept. */
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
 * The places in a word where a user may begin: after a scheme's slashes, or at its head when there is no scheme; a label
 * before a URL is no user.
 */
const USER = /\/\/|(?:^|["'`=])[^"'`=/:]+:(?!["'`]?(?:[a-z][a-z\d+.-]*:)?\/\/)/i

/** User and password before the host of a URL (RFC 3986 section 3.2.1), up to the last @ of the word: no character of theirs need be escaped. */
function wordWithoutUser(word: string): string {
  const end = word.lastIndexOf('@')
  const [match] = end < 0 ? [] : [USER.exec(word.slice(0, end))]
  if (!match) return word
  const [start] = match
  const kept = start === '//' ? start : (/^["'`=]/.exec(start)?.[0] ?? '')
  return word.slice(0, match.index) + kept + word.slice(end + 1)
}

/** A text, a command or a line, whose URLs have no user and no password any more. In time that grows as the text does. */
export const withoutUser = (text: string): string => text.replaceAll(/[^\s,]+/g, wordWithoutUser)

/** Removes users from URLs with commas between them, in which all else may be of a password. */
function urlsWithoutUser(text: string): string {
  const shown: string[] = []
  for (const url of text.split(',')) {
    const [scheme = ''] = /^\s*(?:[a-z][a-z\d+.-]*:)?\/\//i.exec(url) ?? []
    const end = url.lastIndexOf('@')
    const user = url.slice(scheme.length, end + 1)
    // A user without a password cannot be: the comma was part of a password that began before it.
    if (end >= 0 && scheme === '' && !user.includes(':')) shown.length = 0
    shown.push(end < 0 ? url : scheme + url.slice(end + 1))
  }
  return shown.join(',')
}

/** URLs with commas between them, of which user and password are secret. */
export const secretUrls = (text: string): Secret => new Secret(text, urlsWithoutUser)
