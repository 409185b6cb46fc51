// alone.ts - what comes before a node that nobody forwarded before, and that nobody takes over from.

import type { runNode } from '../../src/daemon.ts'
import { createBell } from '../../src/host/bell.ts'
import type { NodeParts } from '../../src/node/node.ts'
import { createPossession } from '../../src/node/possession.ts'

type Before = Parameters<typeof runNode>[3]

export function alone({ log, options }: NodeParts, hostChanged = createBell()): Before {
  return {
    start: { held: createPossession(hostChanged), known: undefined, node: undefined, log, options } as Before['start'],
    succession: {
      tunName: undefined,
      isSuccessor: false,
      isOnLoan: false,
      take: async () => undefined,
      predecessor: async () => undefined,
      opening: async () => undefined,
      release: async () => {},
      settle: () => {},
    },
    fits: () => false,
    amend: (backend) => backend,
  }
}
