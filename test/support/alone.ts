// alone.ts - the state of an earlier run for a node that no daemon precedes or follows.

import { createBell } from '../../src/host/bell.ts'
import type { NodeParts } from '../../src/node/node.ts'
import type { StartParts } from '../../src/node/open.ts'
import { createOwnership } from '../../src/node/ownership.ts'

export function alone({ log }: NodeParts, hostChanged = createBell()): StartParts {
  return {
    ownership: createOwnership(log, hostChanged),
    handover: {
      tunNames: [],
      isSuccessor: false,
      isOnLoan: false,
      take: async () => undefined,
      predecessor: async () => undefined,
      opening: async () => undefined,
      release: async () => {},
      settle: () => {},
    },
    store: '',
    fits: () => false,
    amend: (backend) => backend,
    onNode: () => {},
    permit: async () => {},
  }
}
