// hidden.ts - which parts of a network configuration are secret, and what JSON says when it cannot be read without showing them.

import { messageOf } from '../../base/errors.ts'
import { Secret, withoutUser } from '../../base/secret.ts'

/** Members with such a name are never shown. */
const SECRET_NAME = /psk|password|passphrase|secret|token|(?<!public)key$/i

/** Any word of an operator's command may be a secret: only the program's name is shown. */
const COMMAND_NAME = /command$/i
const programOf = (command: string): string => {
  const [program = '', ...rest] = withoutUser(command.trim()).split(/\s+/)
  return rest.length > 0 ? `${program} <hidden>` : program
}

/** A JSON value whose secrets are `Secret`s: what stands under such a name, whatever it is, the words of commands, and texts that have URLs with a user. */
export function hideSecrets(value: unknown, name = ''): unknown {
  if (value === null || value instanceof Secret) return value
  if (SECRET_NAME.test(name)) return new Secret(typeof value === 'string' ? value : JSON.stringify(value))
  if (typeof value === 'string' && COMMAND_NAME.test(name)) return new Secret(value, programOf)
  if (typeof value === 'string') return withoutUser(value) === value ? value : new Secret(value, withoutUser)
  if (typeof value !== 'object') return value
  if (Array.isArray(value)) return value.map((each) => hideSecrets(each))
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, hideSecrets(member, key)]))
}

/**
 * A configuration's text without its secrets, in one line where it has some, or has what JSON.parse does not tell: of two members of
 * one name it knows the last. Throws an Error for what is no JSON.
 */
export function withoutSecrets(text: string): string {
  const shown = JSON.stringify(hideSecrets(parseJson(text)))
  return withoutSpace(shown) === withoutSpace(text) ? text : shown
}

const withoutSpace = (text: string): string => text.replaceAll(/\s/g, '')

/** Objects and arrays within each other; what backends publish has three. JSON.parse takes any number, at which JSON.stringify throws. */
const DEEPEST = 100

/**
 * Parses JSON. JSON.parse quotes the text around a mistake, which may hold a secret: here the message gives line and
 * column only. A value that is nested so deep that writing or comparing it would run out of stack is refused.
 */
export function parseJson(text: string): unknown {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (error) {
    // oxlint-disable-next-line preserve-caught-error -- the message of the cause is what is not to be shown
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
 * Finds the first character that JSON does not expect: the shortest beginning of the text that fails to parse with it
 * ends there.
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
