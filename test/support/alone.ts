// alone.ts - the hand-over of a node that no daemon precedes or follows.

export const ALONE = {
  tunNames: [],
  isOnLoan: false,
  predecessor: async () => undefined,
  opening: async () => {},
  release: async () => {},
  settle: () => {},
}

/** Refuses nothing. */
export const permitAll = async (): Promise<void> => {}
