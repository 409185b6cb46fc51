// secret.ts - wraps secret texts and bytes, so that they are printed as <hidden>. Only `reveal` returns the value.

import { createHmac, randomBytes } from 'node:crypto'

export const HIDDEN = '<hidden>'
/** A random key of this process, so that secrets cannot be guessed from their hashes. */
const salt = randomBytes(32)

export class Secret {
  readonly #value: string
  readonly #show: (value: string) => string
  /** A keyed hash of the value. isDeepStrictEqual ignores private members, and compares secrets by this one. */
  readonly identity: string

  /** `show` formats the value for display if only a part of it is secret. */
  constructor(value: string, show: (value: string) => string = () => HIDDEN) {
    this.#value = value
    this.#show = show
    this.identity = createHmac('sha256', salt).update(value).digest('base64')
  }

  /** Returns the value. Only the function that needs it may call this; the value must not be shown. */
  reveal(): string {
    return this.#value
  }

  /** Makes a secret with another value that is shown in the same way. */
  with(value: string): Secret {
    return new Secret(value, this.#show)
  }

  get isEmpty(): boolean {
    return this.#value === ''
  }

  /** Returns <hidden>, or an empty text if there is no value. */
  toString(): string {
    return this.isEmpty ? '' : this.#show(this.#value)
  }

  toJSON(): string {
    return this.toString()
  }

  /** Hides the value in util.inspect, which console.log and reports of uncaught exceptions use. */
  [Symbol.for('nodejs.util.inspect.custom')](): string {
    return this.toString()
  }
}

/** Secret bytes, such as a key. Unlike a text, bytes can be wiped when they are no longer needed. */
export class SecretBytes {
  readonly #bytes: Uint8Array

  /** Keeps the given bytes without a copy, so that wiping removes the only copy. */
  constructor(bytes: Uint8Array) {
    this.#bytes = bytes
  }

  /** Returns the bytes, which are zeros after wiping. They must not be shown or stored. */
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
 * Matches the place in a word where the user of a URL may begin: after `//`, or at the start if there is no scheme. A label before a URL is
 * not a user.
 */
const USER = /\/\/|(?:^|["'`=])[^"'`=/:]+:(?!["'`]?(?:[a-z][a-z\d+.-]*:)?\/\/)/i

/**
 * Removes user and password from a URL (RFC 3986 section 3.2.1). They end at the last @ of the word, because a password may contain
 * unescaped characters.
 */
function wordWithoutUser(word: string): string {
  const end = word.lastIndexOf('@')
  const [match] = end < 0 ? [] : [USER.exec(word.slice(0, end))]
  if (!match) return word
  const [start] = match
  const kept = start === '//' ? start : (/^["'`=]/.exec(start)?.[0] ?? '')
  return word.slice(0, match.index) + kept + word.slice(end + 1)
}

/** Removes users and passwords from all URLs in a text. Takes linear time. */
export const withoutUser = (text: string): string => text.replaceAll(/[^\s,]+/g, wordWithoutUser)

/** Removes users and passwords from a comma-separated list of URLs, in which a password may contain commas. */
function urlsWithoutUser(text: string): string {
  const shown: string[] = []
  for (const url of text.split(',')) {
    const [scheme = ''] = /^\s*(?:[a-z][a-z\d+.-]*:)?\/\//i.exec(url) ?? []
    const end = url.lastIndexOf('@')
    const user = url.slice(scheme.length, end + 1)
    // A user always has a password, so this part, which has no colon, belongs to a password that contains a comma.
    if (end >= 0 && scheme === '' && !user.includes(':')) shown.length = 0
    shown.push(end < 0 ? url : scheme + url.slice(end + 1))
  }
  return shown.join(',')
}

/** Makes a secret of a comma-separated list of URLs. Users and passwords are hidden when it is shown. */
export const secretUrls = (text: string): Secret => new Secret(text, urlsWithoutUser)
