// build.mjs - compiles kernel_way.bpf.c and prints it as the C++ header that native/io/bpf.cc includes. binding.gyp runs it.
//
// Usage: node native/bpf/build.mjs OUTPUT
//
// clang compiles the programs for both byte orders, and the addon uses the one of its machine. Without clang the header has no bytes: the
// addon then has everything except the kernel's way (docs/design/kernel-way.md).

import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const SOURCE = join(import.meta.dirname, 'kernel_way.bpf.c')
const [, , output] = process.argv
if (!output) throw new Error('usage: node native/bpf/build.mjs OUTPUT')

/** Returns the object file for a target of clang; undefined if this machine has no clang that knows the target. */
function compiled(target, folder) {
  const object = join(folder, `${target}.o`)
  // Version 2 of the instruction set runs on each kernel since 4.14. The path of the source must not reach the object, so that two
  // builds are equal.
  const flags = [
    '-target',
    target,
    '-mcpu=v2',
    '-O2',
    '-g0',
    '-Wall',
    '-Wextra',
    '-Werror',
    '-ffreestanding',
    '-nostdinc',
  ]
  const { status, error, stderr } = spawnSync('clang', [...flags, '-c', SOURCE, '-o', object], { encoding: 'utf8' })
  if (error || /unable to create target|unknown target/.test(stderr)) return undefined
  if (status !== 0) throw new Error(`clang cannot compile ${SOURCE}:\n${stderr}`)
  return readFileSync(object)
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
      'weft: without clang (with the target bpf) this build lacks the FastPath of the backend udp; all else works',
    )
  const text =
    '// Written by native/bpf/build.mjs.\n#pragma once\n\n#include <cstdint>\n#include <span>\n\nnamespace weft {\n\n' +
    `${arrayOf('kKernelWayLittle', little ?? [])}${arrayOf('kKernelWayBig', big ?? [])}\n}  // namespace weft\n`
  writeFileSync(output, text)
} finally {
  rmSync(folder, { recursive: true, force: true })
}
