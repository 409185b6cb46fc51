// findings.test.ts - weft doctor explains each finding once, and shows its first places with their remedies.

import { expect, it } from 'vitest'
import { FINDINGS, grouped, type Finding } from '../../../../src/tool/doctor/findings.ts'

const forwarding = (device: string): Finding => ({
  name: 'interface-forwarding-off',
  detail: device,
  fix: `switch on ${device}`,
})

it('findings of several names are explained separately, in the order in which they were found', () => {
  const findings: Finding[] = [
    forwarding('cni0'),
    { name: 'no-route', detail: '10.5.2.0/24' },
    forwarding('docker0'),
    { name: 'not-root', detail: '' },
  ]
  expect(grouped(findings)).toEqual([
    {
      name: 'interface-forwarding-off',
      details: ['cni0', 'docker0'],
      more: 0,
      fixes: ['switch on cni0', 'switch on docker0'],
    },
    { name: 'no-route', details: ['10.5.2.0/24'], more: 0, fixes: [FINDINGS['no-route'].fix] },
    { name: 'not-root', details: [], more: 0, fixes: [FINDINGS['not-root'].fix] },
  ])
  expect(grouped([])).toEqual([])
})

it('only the first five places are shown, with the remedies for these places', () => {
  const devices = ['a', 'b', 'c', 'd', 'e', 'f', 'g']
  expect(grouped(devices.map(forwarding))).toEqual([
    {
      name: 'interface-forwarding-off',
      details: devices.slice(0, 5),
      more: 2,
      fixes: devices.slice(0, 5).map((device) => `switch on ${device}`),
    },
  ])
  const same = devices.map((device) => ({ ...forwarding(device), fix: 'reboot' }))
  expect(grouped(same)).toMatchObject([{ more: 2, fixes: ['reboot'] }])
})
