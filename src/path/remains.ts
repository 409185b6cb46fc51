// remains.ts - the type for objects such as devices and rules that weft or flannel left on this host and that `weft
// cleanup` removes.

/** Objects that one call of `remove` removes, such as the rules of one firewall table. */
export interface Remains {
  readonly things: readonly string[]
  /** One line for each object that `weft cleanup` must not remove, with the reason. */
  readonly stays: readonly string[]
  readonly remove: () => Promise<void>
}
