// remains.ts - the type for things such as devices and rules that weft or flannel left on this host and that `weft cleanup` removes.

/** Things that `remove` removes together, such as the rules of one firewall table. */
export interface Remains {
  readonly things: readonly string[]
  /** One line for each thing that `weft cleanup` must not remove, with the reason. */
  readonly stays: readonly string[]
  readonly remove: () => Promise<void>
}
