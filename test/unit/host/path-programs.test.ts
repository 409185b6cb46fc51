// path-programs.test.ts - programs, filters and queueing disciplines that may drop packets on an interface, without those of weft.

import { expect, it } from 'vitest'
import { programsOn } from '../../../src/host/path-programs.ts'

const link = { index: 7, queueDiscipline: 'fq_codel' }
const filter = (name: string, kind = 'bpf') => ({ priority: 1, kind, name })
const nothing = { listFilters: async () => [], tcxPrograms: async () => 0 }

it('names each program and filter once, and leaves out the programs of weft', async () => {
  const listFilters = async ({ isEgress }: { isEgress: boolean }) =>
    isEgress ? [filter('weft-out'), filter('', 'flower'), filter('cil_to_netdev')] : [filter('', 'flower')]
  const tcxPrograms = async ({ isEgress }: { isEgress: boolean }) => (isEgress ? 0 : 2)
  expect(await programsOn({ ...link, hasXdp: true, queueDiscipline: 'netem' }, { listFilters, tcxPrograms })).toEqual([
    'an XDP program',
    'the queueing discipline netem',
    'tcx programs',
    'the tc filter flower',
    'the tc filter cil_to_netdev',
  ])
  expect(await programsOn(link, nothing)).toEqual([])
})

it('names the others if the kernel refuses to list some', async () => {
  const refuse = () => Promise.reject(new Error('Operation not permitted'))
  expect(await programsOn({ ...link, hasXdp: true }, { listFilters: refuse, tcxPrograms: refuse })).toEqual([
    'an XDP program',
  ])
  expect(await programsOn(link, { ...nothing, tcxPrograms: refuse })).toEqual([])
})
