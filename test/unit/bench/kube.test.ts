// kube.test.ts - the pure parts of the benchmark `kube`: its nodes, and the figures that it computes from metrics.

import { describe, expect, it } from 'vitest'
import { nodeObject, readServerState, requestsBetween, restartCpu } from '../../../bench/kube/cluster-model.ts'
import { annotationNames, entryOf, isManaged, nodeOf, subnetsOf } from '../../../src/control/kube/node-lease.ts'

const names = annotationNames('flannel.alpha.coreos.com')

describe('the nodes', () => {
  it('have leases, each with a subnet and a host of its own', () => {
    const leases = Array.from({ length: 5_000 }, (_, index) => {
      const node = nodeOf(nodeObject(index))
      const subnets = subnetsOf(node)
      if (typeof subnets !== 'object') throw new Error(`node ${index} has no subnet`)
      expect(isManaged(node, names)).toBe(true)
      return entryOf(node, subnets, names)
    })
    expect(new Set(leases.map(({ key }) => key)).size).toBe(5_000)
    expect(new Set(leases.map(({ lease }) => lease?.attrs.publicIp.ipv4)).size).toBe(5_000)
  })

  it('are as large as real ones', () => {
    const bytes = JSON.stringify(nodeObject(1)).length
    expect(bytes).toBeGreaterThan(9_000)
    expect(bytes).toBeLessThan(16_000)
  })
})

describe('the metrics', () => {
  const metrics = (cpu: number, lists: number): string =>
    [
      '# HELP apiserver_request_total [STABLE] Counter of apiserver requests',
      `apiserver_request_total{code="200",component="apiserver",group="",resource="nodes",scope="cluster",subresource="",verb="LIST",version="v1"} ${lists}`,
      'apiserver_request_total{code="429",component="apiserver",group="",resource="nodes",scope="cluster",subresource="",verb="LIST",version="v1"} 2',
      'apiserver_request_total{code="200",component="apiserver",group="",resource="nodes",scope="resource",subresource="status",verb="PATCH",version="v1"} 5',
      'apiserver_request_total{code="200",component="apiserver",group="",resource="pods",scope="cluster",subresource="",verb="LIST",version="v1"} 90',
      'apiserver_storage_list_total{group="",index="",resource="nodes",storage="watchcache"} 40',
      'apiserver_storage_list_total{group="",index="",resource="nodes",storage="etcd"} 3',
      `process_cpu_seconds_total ${cpu}`,
      '',
    ].join('\n')

  it('give the CPU time, the requests for nodes by verb, and the refused requests', () => {
    expect(readServerState(metrics(12.5, 30))).toEqual({
      cpu: 12.5,
      requests: { LIST: 32, PATCH: 5 },
      refused: 2,
      fromEtcd: 3,
    })
  })

  it('show the requests between two states, without verbs that were not used', () => {
    expect(requestsBetween(readServerState(metrics(1, 10)), readServerState(metrics(2, 40)))).toEqual({ LIST: 30 })
  })

  it('without the CPU time or the requests are refused, because the figures would be wrong', () => {
    expect(() => readServerState(metrics(1, 10).replace('process_cpu', 'cpu'))).toThrow('has no metrics')
    expect(() => readServerState('process_cpu_seconds_total 3')).toThrow('has no metrics')
  })
})

it('a restart of all daemons costs their starts, and each write of a node once for each daemon', () => {
  expect(restartCpu(10, { start: 2, writes: 0, event: 1 })).toBe(20)
  expect(restartCpu(10, { start: 2, writes: 1, event: 0.5 })).toBe(70)
})
