// options.mjs - reads the command line of `npm run release`.

import { parseArgs } from 'node:util'
import { ARCHITECTURES } from './architectures.mjs'

const NAMES = ARCHITECTURES.map(({ debian }) => debian)
const IMAGE = 'write --image REGISTRY/weft, such as --image ghcr.io/somebody/weft'
const ARCH = `write --arch with one or more of ${NAMES.join(',')}`

/** An error in the command line. Its message names the valid form of the option. */
export class OptionError extends Error {}

/**
 * Returns the architectures whose Debian names are in `list`, in the order of the table ARCHITECTURES. Commas separate
 * the names in `list`.
 * @param {string} list
 */
export function architecturesIn(list) {
  const names = list.split(',')
  const strange = names.find((name) => !NAMES.includes(name))
  if (strange !== undefined)
    throw new OptionError(`${JSON.stringify(strange)} is not an architecture of a release; ${ARCH}`)
  return ARCHITECTURES.filter(({ debian }) => names.includes(debian))
}

/**
 * Reads the options. `image` is the image name for the manifest and the chart, or undefined for the name in
 * publisher.json. `architectures` are the architectures to build: all of them, unless `--arch` names some. Throws an
 * OptionError if an option is invalid.
 * @param {readonly string[]} words
 */
export function readOptions(words) {
  let values
  try {
    ;({ values } = parseArgs({ args: [...words], options: { image: { type: 'string' }, arch: { type: 'string' } } }))
  } catch (error) {
    throw new OptionError(`${error.message}; ${IMAGE}, or ${ARCH}`)
  }
  const { image, arch } = values
  // The image name must contain no tag, because weft's version is appended as the tag. The pattern follows the grammar
  // of image names in the project distribution/reference.
  const pattern = /^[a-z\d](?:[a-z\d.-]*[a-z\d])?(?::\d+)?(?:\/[a-z\d]+(?:(?:[._]|__|-+)[a-z\d]+)*)+$/
  if (image !== undefined && !pattern.test(image))
    throw new OptionError(`${JSON.stringify(image)} is not the name of an image without a tag; ${IMAGE}`)
  return { image, architectures: arch === undefined ? ARCHITECTURES : architecturesIn(arch) }
}
