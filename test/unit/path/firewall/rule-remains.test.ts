// rule-remains.test.ts - the search for flannel's rules when the commands that list the rules fail or are not installed.

import { expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import type { Run } from '../../../../src/host/command.ts'
import { findIptablesRemains, findNftablesRemains } from '../../../../src/path/firewall/rule-remains.ts'
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

const notInstalled: Run = async (file) => {
  throw new WeftError('COMMAND', `${file} is not installed`, {
    cause: Object.assign(new Error('ENOENT'), { code: 'ENOENT', path: file }),
  })
}

it('reports tables of iptables-nft that no installed program can show', async () => {
  const kernel = new ModelKernel()
  kernel.legacy = []
  kernel.nft = [{ family: 'ip', name: 'nat', objects: 3 }]
  const { remains, unseen } = await findIptablesRemains(notInstalled, kernel, new Set(), true)
  expect([remains, unseen]).toEqual([[], ['nft is not installed']])
  kernel.nft = undefined // the kernel does not list its tables, so there may be no such tables
  expect(await findIptablesRemains(notInstalled, kernel, new Set(), true)).toEqual({ remains: [], unseen: [] })
})

it('finds the tables of nftables mode without nft, and says that nft is missing when they are removed', async () => {
  const kernel = new ModelKernel()
  kernel.nft = [
    { family: 'ip', name: 'flannel-ipv4', objects: 2 },
    { family: 'inet', name: 'flannel-ipv6', objects: 0 },
  ]
  const found = await findNftablesRemains(notInstalled, kernel)
  expect(found.map(({ things }) => things)).toEqual([['nft: table ip flannel-ipv4']])
  await expect(found[0]?.remove()).rejects.toThrow('nft is not installed')
  kernel.nft = undefined
  expect(await findNftablesRemains(notInstalled, kernel)).toEqual([])
  const listed: Run = async (_file, args) => (args.at(-1) === 'ip6' ? 'table ip6 flannel-ipv6\n' : '')
  const onlyNft = await findNftablesRemains(listed, kernel)
  expect(onlyNft.map(({ things }) => things)).toEqual([['nft: table ip6 flannel-ipv6']])
})
