// remains.ts - the type of something that weft or flannel left on this host and that `weft cleanup` can remove.

/** Remains that are removed in one step. */
export interface Remains {
  readonly things: readonly string[]
  /** One line for each thing that must stay, with the reason. */
  readonly stays: readonly string[]
  readonly remove: () => Promise<void>
}
