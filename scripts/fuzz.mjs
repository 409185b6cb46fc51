// fuzz.mjs - feeds random input to weft's C++ packet code (test/native/core_fuzz.cc): `npm run test:fuzz -- SECONDS`.
// The code runs under libFuzzer with the address and undefined behavior sanitizers.
//
// The first inputs are the corpus in test/native/corpus and random packets (test/support/packet-model.ts). One process
// runs on each core. libFuzzer keeps inputs that reach new code in build/fuzz/corpus for the next run. `--keep`
// replaces test/native/corpus by the smallest set of inputs with the same coverage. The script prints an input that
// makes the core fail, and keeps it in build/fuzz.

import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { createProgress, runAloud } from './progress.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const folder = join(root, 'build/fuzz')
const corpus = join(folder, 'corpus')
const kept = join(root, 'test/native/corpus')
const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: { processes: { type: 'string', default: String(availableParallelism()) }, keep: { type: 'boolean' } },
})
const seconds = Number(positionals[0] ?? 60)
if (!(seconds >= 1)) {
  process.stderr.write(`fuzz: ${positionals[0]} is not a number of seconds\n`)
  process.exit(2)
}

const { coalesceJob, segmentJob } = await import(join(root, 'dist/test/support/core-jobs.js'))
const { encodeVirtio, NO_OFFLOAD, randomBatch, randomFrom, randomSuperpacket } = await import(
  join(root, 'dist/test/support/packet-model.js')
)
const { writeMacs } = await import(join(root, 'dist/src/path/backends/wireguard/cookie.js'))

/**
 * Encodes one packet for the fuzz targets of the packet loops: its length as a uint16 in this machine's byte order,
 * then its bytes.
 */
function message(...parts) {
  const bytes = Buffer.concat(parts)
  return Buffer.concat([Buffer.from(new Uint16Array([bytes.length]).buffer), bytes])
}

/**
 * Returns a VXLAN frame that contains `packet`. The frame's VNI and MAC addresses are 0, because the host in
 * core_fuzz.cc has the VNI 0 and the MAC address 0 (RFC 7348 section 5).
 */
function frame(packet) {
  const header = Buffer.alloc(22)
  header[0] = 8
  header.writeUInt16BE(packet[0] >> 4 === 4 ? 0x0800 : 0x86dd, 20)
  return Buffer.concat([header, packet])
}

/**
 * Encodes a WireGuard session in the format of native/core/sessions.h. The session has the id 1, one active key pair,
 * one queued packet and no control messages; all of its times are 0.
 */
function savedSession(random) {
  const numbers = (...of) => Buffer.from(new Uint32Array(of).buffer)
  const [time, key, window] = [
    Buffer.alloc(8),
    Buffer.alloc(32).map(() => random.below(256)),
    Buffer.alloc(128 * 8 + 8),
  ]
  const uses = Buffer.alloc(8)
  const pair = [Buffer.from([1]), numbers(0, 7), key, key, time, Buffer.alloc(8, 3), window, uses, Buffer.alloc(1)]
  const session = [time, time, time, uses, numbers(0, 0), Buffer.from([0, 1]), ...pair, Buffer.from([0])]
  const waiting = [numbers(1), time, numbers(40), Buffer.alloc(40)]
  return Buffer.concat([Buffer.from([20]), numbers(1, 1, 1, 1, 1), ...session, ...waiting, numbers(0, 0, 0, 0, 0, 0)])
}

/** Encodes a packet for core_fuzz.cc, which encrypts the packet with the given counter and key pair. */
const sealed = (counter, pair, packet) =>
  message(Buffer.from(new Uint16Array([counter]).buffer), Buffer.from([pair]), packet)

/**
 * Returns a WireGuard message of the given type, whose receiver index belongs to session 3 in core_fuzz.cc: `pair` 0 to
 * 2 names a key pair, 3 a handshake. A handshake initiation gets a valid MAC, made with an all-zero key.
 */
function wireguard(type, bytes, pair) {
  const all = Buffer.alloc(bytes)
  all[0] = type
  for (const at of [4, 8]) all.writeUInt32LE((3 << 12) | pair, at)
  if (type === 1) writeMacs(all, { mac1: Buffer.alloc(32) })
  return message(all)
}

/** Encodes a netlink message (netlink(7)) in this machine's byte order. */
function netlink(type, flags, sequence, body) {
  const padded = Buffer.concat([body, Buffer.alloc(-body.length & 3)])
  const numbers = [
    Buffer.from(new Uint32Array([16 + body.length]).buffer),
    Buffer.from(new Uint16Array([type, flags]).buffer),
  ]
  return Buffer.concat([...numbers, Buffer.from(new Uint32Array([sequence, 0]).buffer), padded])
}

/**
 * Encodes netlink messages from the kernel: two errors with an explanation, of which the second contains the rejected
 * request, and the end of a listing that was interrupted.
 */
function netlinkAnswers(errno) {
  const error = Buffer.from(new Int32Array([-errno]).buffer)
  const text = Buffer.from('no device\0\0\0')
  const explanation = Buffer.concat([Buffer.from(new Uint16Array([4 + text.length, 1]).buffer), text])
  const request = netlink(24, 5, 1, Buffer.alloc(12))
  return [
    message(netlink(2, 0x300, 1, Buffer.concat([error, request.subarray(0, 16), explanation]))),
    message(netlink(2, 0x200, 2, Buffer.concat([error, request, explanation]))),
    message(
      netlink(16, 0x12, 3, Buffer.alloc(errno)),
      netlink(16, 2, 3, Buffer.alloc(16)),
      netlink(3, 2, 3, Buffer.alloc(4)),
    ),
  ]
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
      sealing: Buffer.concat([
        Buffer.from('o'),
        message(encodeVirtio(virtio), packet),
        ...batch.map((each) => message(encodeVirtio(NO_OFFLOAD), each)),
      ]),
      inward: Buffer.concat([Buffer.from(i % 2 ? 'I' : 'i'), ...batch.map((each) => message(each))]),
      vxlan: Buffer.concat([Buffer.from(i % 2 ? 'V' : 'v'), ...batch.map((each) => message(frame(each)))]),
      sealed: Buffer.concat([
        Buffer.from('w'),
        ...batch.map((each, at) => sealed(at, i % 3, each)),
        sealed(1, i % 3, batch[0]),
        sealed(i, 128 + (i % 3), batch[0]),
        sealed(7, 0, Buffer.alloc(0)),
      ]),
      wireguard: Buffer.concat([
        Buffer.from('W'),
        wireguard(1, 148, 0),
        wireguard(2, 92, 3),
        wireguard(3, 64, 3),
        wireguard(4, 32, i % 4),
        wireguard(4, 60 + i, i % 4),
        wireguard(i, 92, 0),
      ]),
      refusals: Buffer.concat([Buffer.from('R'), Buffer.alloc(160).map(() => random.below(256))]),
      netlink: Buffer.concat([Buffer.from('N'), ...netlinkAnswers(i)]),
      sessions: Buffer.concat([Buffer.from('B'), savedSession(random)]),
      strip: Buffer.concat([
        Buffer.from('S'),
        message(Buffer.alloc(2), frame(packet)),
        message(Buffer.from(new Uint16Array([frame(batch[0]).length]).buffer), frame(batch[0]), frame(batch[0])),
      ]),
    }
    for (const [name, bytes] of Object.entries(seeds)) writeFileSync(join(corpus, `${name}-${i}`), bytes)
  }
}

async function mustRun(command, args) {
  const end = await runAloud(command, args, { cwd: folder }).catch((error) => error.message)
  if (end === 0) return
  if (typeof end === 'string') process.stderr.write(`fuzz: ${end}\n`)
  process.stderr.write(`fuzz: ${command} failed; if an input made it fail, it is in ${folder}\n`)
  process.exit(1)
}

writeSeeds()
const program = join(folder, 'core')
const sources = ['native/crypto', 'native/core', 'native/io'].flatMap((area) =>
  readdirSync(join(root, area))
    .filter((name) => name.endsWith('.cc'))
    .map((name) => join(root, area, name)),
)
const build = [
  '-std=c++20',
  '-g1',
  '-O1',
  '-fno-exceptions',
  '-fno-sanitize-recover=all',
  join(root, 'test/native/core_fuzz.cc'),
  ...sources,
  '-o',
  program,
  // The addon uses the libcrypto of Node.js. The fuzzer is a separate program, so it must link libcrypto.
  '-Wl,--no-as-needed',
  '-l:libcrypto.so.3',
]
const building = createProgress('test:fuzz', { total: 1 })
building.now('build')
await mustRun('clang++', ['-fsanitize=fuzzer,address,undefined', ...build])
building.end()

const fuzzing = createProgress('test:fuzz', { total: seconds, pace: 'seconds' })
fuzzing.now('by libFuzzer', seconds)
const corpora = existsSync(kept) ? [corpus, kept] : [corpus]
const limits = [`-max_total_time=${seconds}`, '-max_len=8192', '-timeout=10', '-rss_limit_mb=4096']
// First run every known input once, because libFuzzer with -fork silently skips inputs that crash.
await mustRun(program, ['-runs=0', ...limits, ...corpora])
await mustRun(program, [`-fork=${options.processes}`, '-ignore_crashes=0', ...limits, ...corpora])
fuzzing.end()
if (options.keep) {
  const all = join(folder, 'all')
  rmSync(all, { recursive: true, force: true })
  mkdirSync(all)
  await mustRun(program, ['-set_cover_merge=1', '-use_counters=0', '-use_value_profile=0', all, ...corpora])
  rmSync(kept, { recursive: true, force: true })
  renameSync(all, kept)
}
process.stdout.write(`fuzz: libFuzzer found nothing in ${seconds} s\n`)
