// rule-remains.test.ts - the search for flannel's rules when the commands that list the rules fail.

import { expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import type { Run } from '../../../../src/host/command.ts'
import { findIptablesRemains } from '../../../../src/path/firewall/rule-remains.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

it('reports a listing of nft that is cut as a command that failed', async () => {
  const run: Run = async (file, args) => {
    if (file !== 'nft')
      throw new WeftError('COMMAND', `${file} is not installed`, {
        cause: Object.assign(new Error('ENOENT'), { code: 'ENOENT', path: file }),
      })
    if (args.includes('-j')) return '{"nftables": [{"chain": {"family": "ip", "ta'
    return 'table ip nat\n'
  }
  await expect(findIptablesRemains(run, new ModelKernel(), new Set(), true)).rejects.toMatchObject({
    code: 'COMMAND',
    message: expect.stringMatching(/^nft did not print the whole table ip nat: /),
  })
})
