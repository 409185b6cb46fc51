// fuzz.mjs - the native core under libFuzzer with the address and undefined behaviour sanitizers: `npm run test:fuzz -- SECONDS`.
//
// Starts from random batches and superpackets (test/support/packet-model.ts), with one process a core. What it found
// worth keeping stays in build/fuzz/corpus for the next run; an input that fails is printed and left in build/fuzz.

import { spawnSync } from 'node:child_process'
import { mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const folder = join(root, 'build/fuzz')
const corpus = join(folder, 'corpus')
const seconds = Number(process.argv[2] ?? 60)
if (!(seconds >= 1)) {
  process.stderr.write(`fuzz: ${process.argv[2]} is no number of seconds\n`)
  process.exit(2)
}

const { coalesceJob, segmentJob } = await import(join(root, 'dist/test/support/core-jobs.js'))
const { encodeVirtio, NO_OFFLOAD, randomBatch, randomFrom, randomSuperpacket } = await import(
  join(root, 'dist/test/support/packet-model.js')
)

/** A message of the walks: its length (uint16, this machine's order) and its bytes. */
function message(...parts) {
  const bytes = Buffer.concat(parts)
  return Buffer.concat([Buffer.from(new Uint16Array([bytes.length]).buffer), bytes])
}

/** A VXLAN frame for the host of core_fuzz.cc, whose VNI and MAC are 0 (RFC 7348 section 5). */
function frame(packet) {
  const header = Buffer.alloc(22)
  header[0] = 8
  header.writeUInt16BE(packet[0] >> 4 === 4 ? 0x0800 : 0x86dd, 20)
  return Buffer.concat([header, packet])
}

function writeSeeds() {
  mkdirSync(corpus, { recursive: true })
  const random = randomFrom(1)
  const small = () => {
    const { virtio, packet } = randomSuperpacket(random)
    return packet.length < 4_000 ? { virtio, packet } : small()
  }
  for (let i = 0; i < 20; i++) {
    const { virtio, packet } = small()
    const batch = randomBatch(random, 5)
    const seeds = {
      segment: Buffer.concat([Buffer.from('j'), segmentJob(virtio, packet)]),
      coalesce: Buffer.concat([Buffer.from('j'), coalesceJob(batch)]),
      outward: Buffer.concat([
        Buffer.from('O'),
        message(encodeVirtio(virtio), packet),
        message(encodeVirtio(NO_OFFLOAD), batch[0]),
      ]),
      inward: Buffer.concat([Buffer.from('I'), ...batch.map((each) => message(each))]),
      vxlan: Buffer.concat([Buffer.from('V'), ...batch.map((each) => message(frame(each)))]),
      strip: Buffer.concat([
        Buffer.from('S'),
        message(Buffer.alloc(2), frame(packet)),
        message(Buffer.from(new Uint16Array([frame(batch[0]).length]).buffer), frame(batch[0]), frame(batch[0])),
      ]),
    }
    for (const [name, bytes] of Object.entries(seeds)) writeFileSync(join(corpus, `${name}-${i}`), bytes)
  }
}

function run(command, args) {
  const { status, error } = spawnSync(command, args, { cwd: folder, stdio: 'inherit' })
  if (error) process.stderr.write(`fuzz: ${command} cannot be run: ${error.message}\n`)
  if (status !== 0) process.exit(1)
}

writeSeeds()
const program = join(folder, 'core')
const sources = ['native/core', 'native/io'].flatMap((room) =>
  readdirSync(join(root, room))
    .filter((name) => name.endsWith('.cc'))
    .map((name) => join(root, room, name)),
)
run('clang++', [
  ...['-std=c++20', '-g', '-O1', '-fno-exceptions', '-fno-sanitize-recover=all'],
  '-fsanitize=fuzzer,address,undefined',
  ...[join(root, 'test/native/core_fuzz.cc'), ...sources, '-o', program],
])
const workers = availableParallelism()
const limits = [`-max_total_time=${seconds}`, '-max_len=8192', '-timeout=10', '-rss_limit_mb=4096']
run(program, [`-fork=${workers}`, '-ignore_crashes=0', ...limits, corpus])
process.stdout.write(`fuzz: ${seconds} s with ${workers} processes, nothing found\n`)
