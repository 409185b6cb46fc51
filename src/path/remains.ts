// remains.ts - what weft or flannel left on this host, as a thing to be named and removed.

/** A thing that can be removed in one step. */
export interface Remains {
  /** A line for each thing. */
  readonly things: readonly string[]
  /** Lines for what must stay, with the reason. */
  readonly stays: readonly string[]
  readonly remove: () => Promise<void>
}
