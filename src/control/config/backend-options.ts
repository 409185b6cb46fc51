// backend-options.ts - reads the options of the `Backend` object of the network configuration according to the table of
// backends (path/catalog.ts). The case of an option's name does not matter. The error for an invalid value says how to
// correct the value.

import { WeftError } from '../../base/errors.ts'
import { Secret } from '../../base/secret.ts'
import {
  isBackendType,
  KINDS,
  remedyFor,
  type BackendType,
  type Option,
  type Options,
  type Settings,
} from '../../path/catalog.ts'

type Given = Readonly<Record<string, unknown>>

/**
 * Reads and checks all options of the `Backend` object for one backend type. The keys of `backend` must be in lower
 * case. Throws WeftError CONFIG for an invalid value.
 */
export function readSettings<T extends BackendType>(type: T, backend: Given): Settings<T> {
  return readOptions(KINDS[type].options, backend) as Settings<T>
}

export function readOptions(options: Options, backend: Given): Readonly<Record<string, unknown>> {
  return Object.fromEntries(
    Object.entries(options).map(([name, option]) => [
      name,
      isOption(option) ? readOption(option, backend) : readOptions(option, backend),
    ]),
  )
}

const isOption = (option: Option | Options): option is Option => typeof option.kind === 'string'

/**
 * Returns the value of one option from the `Backend` object, or the option's default if the object lacks it. Throws
 * WeftError CONFIG for an invalid value.
 */
export function readOption(option: Option, backend: Given): unknown {
  const given = backend[option.name.toLowerCase()] ?? undefined
  function refuse(remedy: string): never {
    throw new WeftError('CONFIG', `Backend.${option.name} is ${JSON.stringify(given)}`, { remedy })
  }
  switch (option.kind) {
    case 'flag': {
      const value = given ?? false
      return typeof value === 'boolean' ? value : refuse('give it true or false')
    }
    case 'number': {
      const value = given ?? option.default
      if (typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= option.most) return value
      return refuse(`give it a whole number from 0 to ${option.most}`)
    }
    case 'word': {
      const { words } = option
      if (given === undefined) return option.default
      const word = words.find((each) => each === given)
      return word ?? refuse(`give it one of ${words.join(', ')}, or leave it out`)
    }
    case 'secret': {
      const { form, remedy = 'give it another one', isRequired, refusal } = option
      const text = given ?? ''
      if (typeof text !== 'string' && !(text instanceof Secret)) return refuse('give it a text')
      const secret = typeof text === 'string' ? new Secret(text, (shown) => shown) : text
      if ((secret.isEmpty && !isRequired) || !form || form.test(secret.reveal())) return secret
      if (refusal !== undefined) throw new WeftError('CONFIG', refusal, { remedy: `Backend.${option.name}: ${remedy}` })
      return refuse(remedy)
    }
    case 'text': {
      const { default: usual = '', form, remedy, isRequired } = option
      const text = given ?? usual
      const mayBeUsual = text === usual && !isRequired
      return typeof text === 'string' && (mayBeUsual || form.test(text)) ? text : refuse(remedy)
    }
    case 'texts': {
      const { form, remedy } = option
      if (given === undefined) return []
      const list: readonly unknown[] = Array.isArray(given) ? given : [given]
      const texts = list.filter((each): each is string => typeof each === 'string' && form.test(each))
      return texts.length > 0 && texts.length === list.length ? texts : refuse(remedy)
    }
    case 'object': {
      const { orText, remedy } = option
      if (given === undefined || (orText && (typeof given === 'string' || given instanceof Secret))) return given
      const isObject = typeof given === 'object' && !Array.isArray(given) && !(given instanceof Secret)
      return isObject ? given : refuse(remedy)
    }
  }
}

/** Throws WeftError CONFIG, with flanneld's words, if `type` is not the type of a backend. */
export function knownType(type: string): BackendType {
  if (isBackendType(type)) return type
  throw new WeftError('CONFIG', `Error fetching backend: unknown backend type: ${type}`, { remedy: remedyFor() })
}
