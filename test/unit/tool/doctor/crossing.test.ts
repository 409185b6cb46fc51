// crossing.test.ts - weft doctor probes the bridges of peers if the underlay carries packets with the addresses of containers.

import { expect, it } from 'vitest'
import { formatAddress, parseAddress } from '../../../../src/net/address.ts'
import { countPeers, type Status } from '../../../../src/report/status.ts'
import { bridgeProbes, type BridgeAnswer } from '../../../../src/tool/doctor/bridge-probes.ts'
import { diagnose } from '../../../../src/tool/doctor/checks.ts'
import { checkCrossing } from '../../../../src/tool/doctor/crossing.ts'
import { explain } from '../../../../src/tool/doctor/explain.ts'
import { gatherFacts } from '../../../../src/tool/doctor/facts.ts'
import { route, silentSide, sound, soundDual, soundStatus } from '../../../support/facts.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

const withType = (status: Status, backendType: string): Status => ({
  ...status,
  config: { ...status.config!, backendType },
})
const hostGw = withType(soundStatus, 'host-gw')
const textOf = (status: Status, links = sound.links): string[] =>
  bridgeProbes(status, links).map(({ to, fromBridge, fromHost }) =>
    [fromBridge, fromHost, to].map(formatAddress).join(' '),
  )

it('probes the bridges of peers from the bridge and from the host, in each family', () => {
  expect(textOf(hostGw)).toEqual(['10.5.1.1 192.0.2.1 10.5.2.1'])
  expect(textOf(withType(soundDual.status, 'host-gw'), soundDual.links)).toEqual([
    '10.5.1.1 192.0.2.1 10.5.2.1',
    'fd00:5:0:1::1 2001:db8::1 fd00:5:0:2::1',
  ])
  expect(textOf(withType(soundStatus, 'aws-vpc'))).toHaveLength(1)
  // A tunnel hides the addresses of containers from the underlay, and without a bridge no container sends packets.
  expect(textOf(soundStatus)).toEqual([])
  expect(textOf(hostGw, [])).toEqual([])
})

it('prefers the peers whose hosts answer, because the leases of hosts that are gone remain for a day', () => {
  const peers = [3, 4, 5, 6, 7].map((number) => ({
    ...soundStatus.peers!.list[0]!,
    ...(number === 7 ? {} : silentSide),
    lease: `10.5.${number}.0-24`,
    subnet: `10.5.${number}.0/24`,
  }))
  const status = { ...hostGw, peers: countPeers(peers, 10) }
  expect(textOf(status).map((text) => text.replace(/.* /, ''))).toEqual([
    '10.5.7.1',
    '10.5.3.1',
    '10.5.4.1',
    '10.5.5.1',
  ])
})

const answer = (isBridgeAnswered: boolean, isHostAnswered: boolean, family: BridgeAnswer['family'] = 'ipv4') => ({
  ...bridgeProbes(hostGw, sound.links)[0]!,
  family,
  isBridgeAnswered,
  isHostAnswered,
})
const judged = (...bridgeAnswers: BridgeAnswer[]) =>
  checkCrossing({ ...sound, status: hostGw, bridgeAnswers })?.map(({ name, detail }) => `${name}: ${detail}`)

it('reports that the bridge of a peer answers this host alone', () => {
  expect(judged(answer(false, true))).toEqual(['source-unanswered: 10.5.2.0/24 at 192.0.2.2:8285'])
  expect(judged(answer(true, true))).toEqual([])
  expect(judged(answer(true, false))).toEqual([])
  // Without probes weft doctor does not know it either, unless there is no peer or a tunnel.
  expect(judged()).toBeUndefined()
  expect(checkCrossing({ ...sound, status: { ...hostGw, peers: countPeers([], 10) } })).toEqual([])
  expect(checkCrossing(sound)).toEqual([])
  expect(checkCrossing({ ...sound, status: undefined })).toBeUndefined()
  const unprobed = diagnose({ ...sound, status: hostGw }).find(({ check }) => check === 'crossing')
  expect(unprobed?.why).toMatch(/^the bridges of peers were not probed/)
})

it('does not know whether packets of containers arrive if no bridge of a family answers', () => {
  expect(judged(answer(false, false))).toBeUndefined()
  expect(judged(answer(true, true), answer(false, false, 'ipv6'))).toBeUndefined()
  // A peer without containers has no bridge that could answer.
  expect(judged(answer(true, true), answer(false, false))).toEqual([])
  expect(judged(answer(false, true), answer(false, false, 'ipv6'))).toHaveLength(1)
  const facts = { ...sound, status: hostGw, bridgeAnswers: [answer(false, false)] }
  expect(diagnose(facts).find(({ check }) => check === 'crossing')).toEqual({
    check: 'crossing',
    findings: undefined,
    why: expect.stringMatching(/source\/destination check/),
  })
})

it('does not judge the answers before weftd has a configuration and a lease', () => {
  const bridgeAnswers = [answer(false, true)]
  const judgedIn = (part: Partial<Status>) => checkCrossing({ ...sound, status: { ...hostGw, ...part }, bridgeAnswers })
  expect(judgedIn({})).toHaveLength(1)
  expect(judgedIn({ config: null })).toBeUndefined()
  expect(judgedIn({ node: null })).toBeUndefined()
  // weftd no longer knows the peers, or the peer left while weft doctor sent its probes.
  expect(judgedIn({ peers: null })).toEqual([])
  const another = { ...soundStatus.peers!.list[0]!, lease: '10.5.9.0-24' }
  expect(judgedIn({ peers: countPeers([another], 10) })).toEqual([])
})

it('names each peer whose bridge does not answer, with the subnet of the family', () => {
  const status = withType(soundDual.status, 'host-gw')
  const [probe] = bridgeProbes(status, soundDual.links)
  const answers = (['ipv4', 'ipv6'] as const).map((family) => ({ ...probe!, ...answer(false, true, family) }))
  const bridgeAnswers = answers.map((each) => ({ ...each, lease: probe!.lease }))
  const details = (list: BridgeAnswer[]) =>
    checkCrossing({ ...soundDual, status, bridgeAnswers: list })?.map(({ detail }) => detail)
  expect(details(bridgeAnswers)).toEqual(['10.5.2.0/24 at 192.0.2.2:8472', 'fd00:5:0:2::/64 at [2001:db8::2]:8472'])
  // IPv6 crosses the underlay, and IPv4 does not.
  expect(details([bridgeAnswers[0]!, { ...bridgeAnswers[1]!, isBridgeAnswered: true }])).toHaveLength(1)
})

it('gathers the answers, and leaves out probes that this host cannot send', async () => {
  const kernel = new ModelKernel()
  Object.assign(kernel, { links: async () => sound.links })
  const status = { ...hostGw, store: { ...hostGw.store, name: 'directory' as const } }
  const asked: string[] = []
  const pingFrom = async (from: number | bigint, to: number | bigint): Promise<boolean> => {
    asked.push(`${formatAddress(from)} ${formatAddress(to)}`)
    return from === parseAddress('192.0.2.1')
  }
  const sources = { status, silence: undefined, subnetFile: '/nowhere', run: async () => '', kernel, probe: undefined }
  const { bridgeAnswers } = await gatherFacts({ ...sources, pingFrom })
  expect(bridgeAnswers).toMatchObject([{ isBridgeAnswered: false, isHostAnswered: true }])
  expect(asked).toEqual(['10.5.1.1 10.5.2.1', '192.0.2.1 10.5.2.1'])
  expect((await gatherFacts(sources)).bridgeAnswers).toEqual([])
})

it('weft explain does not say that the answers of a host prove that packets of containers arrive', () => {
  const peerStep = (from: string, status: Status) =>
    explain({
      source: parseAddress(from)!,
      destination: parseAddress('10.5.2.2')!,
      status,
      facts: { ...sound, status },
      route: route('', 'eth0', '192.0.2.2'),
    }).find(({ step }) => step === 'peer')
  expect(peerStep('10.5.1.2', hostGw)).toEqual({
    step: 'peer',
    passes: undefined,
    says: expect.stringMatching(/^its host answers this host, in 1 ms; this does not show/),
  })
  expect(peerStep('192.0.2.1', hostGw)).toMatchObject({ passes: true })
  expect(peerStep('10.5.1.2', soundStatus)).toMatchObject({ passes: true })
})
