// interfaces.ts - the types of the functions that translate between names and indexes of network interfaces.

import type { Device } from '../kernel.ts'

/**
 * Returns the index of an interface: its `index`, or else the index of the interface with its name; 0 if there is none.
 */
export type IndexOf = (device: Device) => number

/** Returns the name of the interface with an index; an empty text if there is none. */
export type NameOf = (index: number) => string
