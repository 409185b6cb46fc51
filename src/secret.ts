// secret.ts - a secret: however it is printed, it prints as <hidden>; only `reveal` gives what it is.

import { createHmac, randomBytes } from 'node:crypto'

const HIDDEN = '<hidden>'
/** Of this process. */
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

  /** What it is: for whoever it is handed to, never for a text that is shown. */
  reveal(): string {
    return this.#value
  }

  /** Another one that is printed as this one is. */
  with(value: string): Secret {
    return new Secret(value, this.#show)
  }

  get isEmpty(): boolean {
    return this.#value === ''
  }

  /** Whether there is one may be seen. */
  toString(): string {
    return this.isEmpty ? '' : this.#show(this.#value)
  }

  toJSON(): string {
    return this.toString()
  }

  /** For util.inspect, and so console.log and what Node.js says of an exception that nobody caught. */
  [Symbol.for('nodejs.util.inspect.custom')](): string {
    return this.toString()
  }
}

/** Where a user may begin in a word of a text: after a scheme's slashes, or where the scheme is left out, which a label before a URL is not. */
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

/** The same of URLs with commas between them, in which all else may be of a password. */
function urlsWithoutUser(text: string): string {
  const shown: string[] = []
  for (const url of text.split(',')) {
    const [scheme = ''] = /^\s*(?:[a-z][a-z\d+.-]*:)?\/\//i.exec(url) ?? []
    const end = url.lastIndexOf('@')
    const user = url.slice(scheme.length, end + 1)
    // No user has a password here: the comma is of the one that began before.
    if (end >= 0 && scheme === '' && !user.includes(':')) shown.length = 0
    shown.push(end < 0 ? url : scheme + url.slice(end + 1))
  }
  return shown.join(',')
}

/** URLs with commas between them, of which user and password are secret. */
export const secretUrls = (text: string): Secret => new Secret(text, urlsWithoutUser)
