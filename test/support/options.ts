// options.ts - the options of a node with their defaults.

import { parseFlags } from '../../src/base/go-flags.ts'
import { cutOptions, FLAGS, type CutOptions, type NodeOptions } from '../../src/options.ts'

/** Parses flags, and cuts the options by the parts of the program. */
export const optionsOf = (...args: readonly string[]): CutOptions => cutOptions(parseFlags(FLAGS, args).options)

export const nodeOptions = (given: Partial<NodeOptions> = {}): NodeOptions => ({ ...optionsOf().node, ...given })
