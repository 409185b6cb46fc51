// model.test.ts - sends 100,000 random packets through the native core and through a simple model of it, and compares
// the results.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { answersOf, coalesceJob, finishJob, segmentJob } from '../support/core-jobs.ts'
import { BUILD_MS, buildOnAddon } from '../support/native-program.ts'
import { needs } from '../support/needs.ts'
import {
  comparable,
  cut,
  flowKey,
  randomBatch,
  randomFrom,
  randomSuperpacket,
  trimmed,
  type Random,
} from '../support/packet-model.ts'

const lacks = needs('g++')

const PACKETS = 100_000
const BATCH = 100
const seed = Number(process.env['WEFT_SEED'] ?? Date.now() % 2 ** 31)
/** The seed is printed with every failure. WEFT_SEED=... repeats the run. */
const said = `seed ${seed}`

let folder: string
let program: string
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'weft-model-'))
  if (lacks) return
  program = join(folder, 'core')
  await buildOnAddon('core_pipe', program)
}, BUILD_MS)
afterAll(() => rmSync(folder, { recursive: true, force: true }))

function core(jobs: readonly Buffer[]): ReturnType<typeof answersOf> {
  const { status, stdout, stderr } = spawnSync(program, { input: Buffer.concat(jobs), maxBuffer: 2 ** 30 })
  expect(status, String(stderr)).toBe(0)
  return answersOf(stdout)
}

function repeat<T>(count: number, each: () => T): T[] {
  return Array.from({ length: count }, each)
}

const hex = (packets: readonly Buffer[] | undefined): string[] | undefined =>
  packets?.map((packet) => packet.toString('hex'))

describe('the native core behaves like the model', () => {
  let random: Random
  beforeAll(() => {
    random = randomFrom(seed)
  })

  it('cuts superpackets into the same bytes', () => {
    const jobs = repeat(PACKETS / 10, () => randomSuperpacket(random))
    const answers = core(jobs.map(({ virtio, packet }) => segmentJob(virtio, packet)))
    for (const { virtio, packet } of jobs) expect(hex(answers.packets()), said).toEqual(hex(cut(virtio, packet)))
    expect(answers.done()).toBe(true)
  })

  it('completes checksums', () => {
    const jobs = repeat(PACKETS / 10, () => randomSuperpacket(random))
    const answers = core(jobs.map(({ virtio, packet }) => finishJob({ ...virtio, type: 'none' }, packet)))
    for (const { virtio, packet } of jobs) {
      const whole = cut({ ...virtio, segmentBytes: 65_535 }, packet)
      expect(hex(answers.packets()), said).toEqual(hex(whole))
    }
  })

  it('joins only packets that can be cut apart again, and keeps the order of each flow', () => {
    const batches = repeat(PACKETS / BATCH, () => randomBatch(random, BATCH))
    const answers = core(batches.map(coalesceJob))
    let joined = 0
    for (const batch of batches) {
      const came = new Map<string, string[]>()
      const went = new Map<string, string[]>()
      const note = (to: Map<string, string[]>, packet: Buffer, text: string): void => {
        const key = flowKey(packet)
        const list = to.get(key)
        if (list) list.push(text)
        else to.set(key, [text])
      }
      for (const packet of batch) note(came, packet, comparable(trimmed(packet)))
      for (const { virtio, packet } of answers.writes()) {
        const packets = virtio.type === 'none' ? [packet] : cut(virtio, packet)
        if (packets.length > 1) joined += packets.length
        for (const each of packets) note(went, each, comparable(each))
      }
      expect(went, said).toEqual(came)
    }
    expect(answers.done()).toBe(true)
    // Most packets came in order, so a third of them must have been joined. Otherwise the test would not test joining.
    expect(joined, said).toBeGreaterThan(PACKETS / 3)
    expect(joined).toBeLessThan(PACKETS)
  })
})
