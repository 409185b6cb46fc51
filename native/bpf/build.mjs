// build.mjs - compiles kernel_way.bpf.c, writes it as the C++ header that native/io/bpf.cc includes, and prints the
// folder of the header. binding.gyp runs it during `node-gyp configure`, because an action of gyp's makefiles fails in a
// folder whose path has a space or an apostrophe.
//
// Usage: node native/bpf/build.mjs OUTPUT
//
// clang compiles the programs for both byte orders, and the addon uses the object file for its machine's byte order. If
// no clang can compile the programs, the byte array in the header is empty, and the addon lacks only FastPath
// (docs/design/kernel-way.md).

import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'

const SOURCE = join(import.meta.dirname, 'kernel_way.bpf.c')
const [, , output] = process.argv
if (!output) throw new Error('usage: node native/bpf/build.mjs OUTPUT')

/**
 * Returns the object file that clang compiles for the target `target`; undefined if this machine has no clang that can
 * compile the eBPF programs.
 */
function compiled(target, folder) {
  const object = join(folder, `${target}.o`)
  // Version 2 of the instruction set runs on each Linux kernel since 4.14. The object file must not contain the path of
  // the source, so that builds in different folders are equal.
  const flags = ['-target', target, '-mcpu=v2', '-O2', '-g0', '-Wall', '-Wextra', '-ffreestanding', '-nostdinc']
  const { status, error, stderr } = spawnSync('clang', [...flags, '-c', SOURCE, '-o', object], { encoding: 'utf8' })
  if (error) return undefined
  process.stderr.write(stderr)
  return status === 0 ? readFileSync(object) : undefined
}

function arrayOf(name, bytes) {
  if (bytes.length === 0) return `constexpr std::span<const uint8_t> ${name};\n`
  const lines = []
  for (let at = 0; at < bytes.length; at += 20) lines.push(`    ${[...bytes.subarray(at, at + 20)].join(',')},\n`)
  return `alignas(8) constexpr uint8_t ${name}_bytes[] = {\n${lines.join('')}};\nconstexpr std::span<const uint8_t> ${name}(${name}_bytes);\n`
}

const folder = mkdtempSync(join(tmpdir(), 'weft-bpf-'))
try {
  const [little, big] = ['bpfel', 'bpfeb'].map((target) => compiled(target, folder))
  if (!little || !big)
    console.error(
      'weft: clang with the target bpf is not installed, so this build lacks the FastPath of the backend udp; all else works',
    )
  const text =
    '// Written by native/bpf/build.mjs.\n#pragma once\n\n#include <cstdint>\n#include <span>\n\nnamespace weft {\n\n' +
    `${arrayOf('kKernelWayLittle', little ?? [])}${arrayOf('kKernelWayBig', big ?? [])}\n}  // namespace weft\n`
  mkdirSync(dirname(output), { recursive: true })
  writeFileSync(output, text)
  process.stdout.write(`${dirname(output)}\n`)
} finally {
  rmSync(folder, { recursive: true, force: true })
}
