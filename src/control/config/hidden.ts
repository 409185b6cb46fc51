// hidden.ts - hides the secret parts of a network configuration, and parses JSON. The error messages of the parser do
// not quote the text, because the text may hold secrets.

import { messageOf } from '../../base/errors.ts'
import { Secret, withoutUser } from '../../base/secret.ts'

const SECRET_NAME = /psk|password|passphrase|secret|token|(?<!public)key$/i
/**
 * Matches the names of HTTP headers that hold a secret and do not match SECRET_NAME. A value with `{credential}` is not
 * secret, because weftd replaces this word by a secret from a file. weft must not hide such a value: weftd saves the
 * configuration without its secrets, and must be able to start with it while the store is unreachable.
 */
const SECRET_HEADER = /^(?:(?:proxy-)?authorization|(?:set-)?cookie)$/i

/**
 * Matches the names of configuration members that hold a command line. Any word of a command may be a secret, so weft
 * prints only the program's name.
 */
const COMMAND_NAME = /command$/i
const programOf = (command: string): string => {
  const [program = '', ...rest] = withoutUser(command.trim()).split(/\s+/)
  return rest.length > 0 ? `${program} <hidden>` : program
}

/**
 * Returns a copy of a JSON value in which each secret is wrapped in a `Secret`. Three kinds of values are secrets: the
 * value of a member with a name such as `Password` or `Authorization`, a command with arguments, and a text with a URL
 * that contains a user name.
 */
export function hideSecrets(value: unknown, name = ''): unknown {
  if (value === null || value instanceof Secret) return value
  const isHeader = typeof value === 'string' && SECRET_HEADER.test(name) && !value.includes('{credential}')
  if (isHeader || SECRET_NAME.test(name))
    return typeof value === 'string' ? new Secret(value) : new Secret(JSON.stringify(value), undefined, true)
  if (typeof value === 'string' && COMMAND_NAME.test(name)) return new Secret(value, programOf)
  if (typeof value === 'string') return withoutUser(value) === value ? value : new Secret(value, withoutUser)
  if (typeof value !== 'object') return value
  if (Array.isArray(value)) return value.map((each) => hideSecrets(each))
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, hideSecrets(member, key)]))
}

/**
 * Returns the text of a network configuration with its secrets hidden. Keeps the layout of the text if the text has no
 * secret; otherwise the result is one line. Throws an Error if the text is not JSON.
 */
export function withoutSecrets(text: string): string {
  const shown = JSON.stringify(hideSecrets(parseJson(text)))
  return withoutSpace(shown) === withoutSpace(text) ? text : shown
}

const withoutSpace = (text: string): string => text.replaceAll(/\s/g, '')

/**
 * The maximum nesting of objects and arrays in a configuration. Backends use three levels. A limit is needed because
 * JSON.stringify throws at some depth, although JSON.parse does not.
 */
const DEEPEST = 100

/**
 * Parses JSON. An error message has only line and column and quotes none of the text, because the text may hold a
 * secret. Throws an Error if the text is not JSON or is nested more than DEEPEST levels deep.
 */
export function parseJson(text: string): unknown {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (error) {
    // oxlint-disable-next-line preserve-caught-error -- the message of the cause may quote a secret
    throw new Error(isQuoting(error) ? `unexpected character ${placeOf(text)}` : messageOf(error))
  }
  if (isDeeper(value, DEEPEST)) throw new Error(`it is nested more than ${DEEPEST} deep`)
  return value
}

const isDeeper = (value: unknown, most: number): boolean =>
  typeof value === 'object' &&
  value !== null &&
  (most === 0 || Object.values(value).some((each) => isDeeper(each, most - 1)))

const isQuoting = (error: unknown): boolean => messageOf(error).endsWith(' is not valid JSON')

/**
 * Returns line and column of the first character that JSON does not allow. Finds the character by a binary search over
 * prefixes of the text.
 */
function placeOf(text: string): string {
  const isWrong = (beginning: string): boolean => {
    try {
      JSON.parse(beginning)
      return false
    } catch (error) {
      return isQuoting(error)
    }
  }
  let [without, having] = [0, text.length]
  while (having - without > 1) {
    const middle = Math.floor((without + having) / 2)
    if (isWrong(text.slice(0, middle))) having = middle
    else without = middle
  }
  const lines = text.slice(0, having).split('\n')
  return `at line ${lines.length}, column ${lines.at(-1)?.length ?? 0}`
}
