// facts.test.ts - weft doctor reads only the firewall rules of the families that the network has.

import { expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import type { Status } from '../../../../src/report/status.ts'
import { gatherFacts, queuesIn } from '../../../../src/tool/doctor/facts.ts'
import { soundDual, soundStatus } from '../../../support/facts.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

/** Runs iptables, ip6tables and the programs that save their rules as stubs, and records their calls. */
async function gathered(status: Status, answers: Readonly<Record<string, string>>) {
  const asked: string[] = []
  const run = async (file: string, args: readonly string[]): Promise<string> => {
    if (!file.includes('tables')) return ''
    asked.push([file, ...args].join(' '))
    const answer = answers[file]
    if (answer === undefined) throw new WeftError('COMMAND', `${file} is not installed`)
    return answer
  }
  // The store is not etcd, so its clock is not queried.
  const store = { ...status.store, name: 'directory' }
  const sources = { silence: undefined, subnetFile: '/nowhere', run, kernel: new ModelKernel(), probe: undefined }
  const { iptables, ip6tables } = await gatherFacts({ ...sources, status: { ...status, store } })
  return { asked: asked.filter((command) => !command.includes('-legacy-')), iptables, ip6tables }
}

it('reads the rules of the families of the node', async () => {
  const both = { 'iptables-save': 'four', 'ip6tables-save': 'six' }
  expect(await gathered(soundStatus, both)).toEqual({
    asked: ['iptables-save -c'],
    iptables: 'four',
    ip6tables: undefined,
  })
  expect(await gathered(soundDual.status, both)).toEqual({
    asked: ['iptables-save -c', 'ip6tables-save -c'],
    iptables: 'four',
    ip6tables: 'six',
  })
  expect(await gathered(soundDual.status, { 'iptables-save': 'four' })).toMatchObject({
    iptables: 'four',
    ip6tables: undefined,
  })
})

it('reads the table filter alone if the host has no iptables-save', async () =>
  expect(await gathered(soundStatus, { iptables: 'four' })).toEqual({
    asked: ['iptables-save -c', 'iptables -w 5 -S'],
    iptables: 'four',
    ip6tables: undefined,
  }))

it('reads the numbers of the queues of netfilter', () => {
  const text =
    '    7  31337     0 2 65531     0     0        0  1\n   10  -4242     3 2 65531     0     0        3  1\n'
  expect([...queuesIn(text)]).toEqual([7, 10])
})
