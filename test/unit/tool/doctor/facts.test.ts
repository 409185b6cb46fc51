// facts.test.ts - what the doctor asks the host's firewall: of a family that the node has nothing of, nothing.

import { expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import type { Status } from '../../../../src/report/status.ts'
import { gatherFacts } from '../../../../src/tool/doctor/facts.ts'
import { soundDual, soundStatus } from '../../../support/facts.ts'

/** What is asked of iptables and ip6tables, and what becomes of it. */
async function gathered(status: Status, answers: Readonly<Record<string, string>>) {
  const asked: string[] = []
  const run = async (file: string, args: readonly string[]): Promise<string> => {
    if (!file.endsWith('tables')) return ''
    asked.push([file, ...args].join(' '))
    const answer = answers[file]
    if (answer === undefined) throw new WeftError('COMMAND', `${file} is not installed`)
    return answer
  }
  // No etcd, which would be asked for its clock.
  const store = { ...status.store, name: 'directory' }
  const sources = { silence: undefined, subnetFile: '/nowhere', run, ask: undefined }
  const { iptables, ip6tables } = await gatherFacts({ ...sources, status: { ...status, store } })
  return { asked, iptables, ip6tables }
}

it('asks for the rules of the families that the node has', async () => {
  const both = { iptables: 'four', ip6tables: 'six' }
  expect(await gathered(soundStatus, both)).toEqual({
    asked: ['iptables -w 5 -S'],
    iptables: 'four',
    ip6tables: undefined,
  })
  expect(await gathered(soundDual.status, both)).toEqual({
    asked: ['iptables -w 5 -S', 'ip6tables -w 5 -S'],
    ...both,
  })
  expect(await gathered(soundDual.status, { iptables: 'four' })).toMatchObject({
    iptables: 'four',
    ip6tables: undefined,
  })
})
