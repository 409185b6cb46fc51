// screen.ts - runs weft in this process and keeps its output.

import { createScreen } from '../../src/tool/weft/look.ts'
import { main } from '../../src/tool/weft/weft.ts'

export interface Shown {
  readonly code: number
  readonly out: string
  readonly err: string
}

export interface Terminal {
  /** True if the output counts as a terminal. */
  readonly isTTY?: boolean
  readonly env?: NodeJS.ProcessEnv
  /** Called with the whole stdout so far, each time it grows. */
  readonly hear?: (out: string) => void
}

export async function weft(
  words: readonly string[],
  { isTTY = false, env = {}, hear = () => {} }: Terminal = {},
): Promise<Shown> {
  const written = { out: '', err: '' }
  const to = (which: 'out' | 'err') => ({
    isTTY,
    on: () => {},
    write: (text: string) => {
      written[which] += text
      hear(written.out)
      return true
    },
  })
  const screen = createScreen(to('out'), to('err'), env)
  return { code: await main(words, screen), ...written }
}
