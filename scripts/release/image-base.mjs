// image-base.mjs - what the images hold of Debian: programs that weft runs, the libraries that these load, and authorities that are
// trusted. No package manager, since nothing is installed in a container.

import { execFileSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { made } from './inputs.mjs'

/** Gets updates until 2030. */
const DEBIAN = 'trixie'
const PACKAGES = [
  'base-files',
  'busybox',
  'ca-certificates',
  'iproute2',
  'iptables',
  'libgcc-s1',
  'libstdc++6',
  'netbase',
  'nftables',
  'util-linux',
  'wireguard-tools',
]
/** What weft and deploy/flanneld.sh run. */
const PROGRAMS = ['bin/busybox', 'bin/ip', 'bin/setpriv', 'bin/wg', 'sbin/bridge', 'sbin/nft'].concat(
  ['nft', 'legacy'].map((kind) => `sbin/xtables-${kind}-multi`),
)
/** Of busybox: those of deploy/flanneld.sh, and to look around in a container. */
const APPLETS = ['cat', 'cp', 'env', 'grep', 'head', 'id', 'ls', 'ps', 'sh', 'sleep', 'tail', 'test']
/** What Node.js is linked to. */
const OF_NODE = ['libc.so.6', 'libdl.so.2', 'libgcc_s.so.1', 'libm.so.6', 'libpthread.so.0', 'libstdc++.so.6']
const TEXTS =
  /^(?:etc\/(?:debian_version|ethertypes|protocols|services|os-release)|usr\/lib\/os-release|usr\/share\/common-licenses\/.*|usr\/share\/doc\/[^/]+\/copyright|s?bin|lib(?:64)?)$/
/** iptables is many programs in two files. */
const OTHER_NAMES = /\/(?:arptables|ebtables|iptables-xml|ip6?tables(?:-\w+)?-translate|ip6?tables-apply)/
/** Of packages that are there without a program; gcc-14-base has the licences of GCC's libraries. */
const FOR_OWNERS = [
  'usr/lib/os-release',
  'usr/sbin/update-ca-certificates',
  'etc/protocols',
  'usr/share/doc/gcc-14-base/copyright',
]
const AUTHORITIES = 'usr/share/ca-certificates/mozilla'

/** The names of the libraries that an ELF file asks for. */
const librariesOf = (path) =>
  [...execFileSync('objdump', ['-p', path], { encoding: 'utf8' }).matchAll(/^ +NEEDED +(\S+)$/gm)].map(
    ([, name]) => name,
  )

/** Programs, iptables' extensions, and what they load: paths in `root`, of files that are no links. */
function programsIn(root, gnu) {
  const libraries = join(root, 'usr/lib', gnu)
  const extensions = join(libraries, 'xtables')
  const found = new Set()
  const add = (path) => {
    const file = realpathSync(path)
    if (found.has(file)) return
    found.add(file)
    for (const name of librariesOf(file)) add(join(libraries, name))
  }
  for (const program of PROGRAMS) add(join(root, 'usr', program))
  for (const name of readdirSync(extensions)) add(join(extensions, name))
  for (const name of OF_NODE) add(join(libraries, name))
  return found
}

/** Each package of which apt has put the archive into this folder: its description, and the paths of its files. */
const packagesIn = (archives) =>
  readdirSync(archives)
    .filter((name) => name.endsWith('.deb'))
    .map((name) => {
      const path = join(archives, name)
      const list = 'dpkg-deb --fsys-tarfile "$0" | tar --list'
      const paths = execFileSync('sh', ['-c', list, path], { encoding: 'utf8', maxBuffer: 2 ** 26 }).split('\n')
      return {
        control: execFileSync('dpkg-deb', ['--field', path], { encoding: 'utf8' }),
        // Some name files below /lib that lie below /usr/lib.
        paths: paths.map((each) => each.replace(/^\.\//, '').replace(/^(?=s?bin\/|lib(?:64)?\/)/, 'usr/')),
      }
    })

/** Removes from `folder`, which is below `root` or is it, what `isKept` says no to, and folders that are empty then. */
function prune(root, folder, isKept) {
  for (const name of readdirSync(folder)) {
    const path = join(folder, name)
    if (lstatSync(path).isDirectory()) prune(root, path, isKept)
    else if (!isKept(path)) rmSync(path)
  }
  if (folder !== root && readdirSync(folder).length === 0) rmdirSync(folder)
}

/**
 * A folder with it. For each package of which something is there, `var/lib/dpkg/status.d` tells which it is, for those who look for
 * weaknesses in images.
 * @param {import('./inputs.mjs').Architecture} architecture
 */
export const imageBase = ({ debian, gnu }) =>
  made(`${DEBIAN}-image-${debian}`, (folder) => {
    // Links are judged by their real paths.
    const root = realpathSync(folder)
    const options = ['--quiet', '--variant=extract', `--arch=${debian}`, '--skip=cleanup/apt/cache']
    execFileSync('mmdebstrap', [...options, `--include=${PACKAGES.join(',')}`, DEBIAN, root], {
      stdio: ['ignore', 2, 'inherit'],
    })
    const packages = packagesIn(join(root, 'var/cache/apt/archives'))
    const programs = programsIn(root, gnu)
    const authorities = readdirSync(join(root, AUTHORITIES)).toSorted()
    const trusted = authorities.map((name) => readFileSync(join(root, AUTHORITIES, name), 'utf8')).join('')
    const isProgram = (path) => existsSync(path) && programs.has(realpathSync(path)) && !OTHER_NAMES.test(path)
    const owned = [...[...programs].map((path) => relative(root, path)), ...FOR_OWNERS]
    const wanted = new Set(owned)
    const inside = packages.filter(({ paths }) => paths.some((path) => wanted.has(path)))
    const copyrights = new Set(
      inside.flatMap(({ paths }) => paths.filter((path) => /\/doc\/[^/]+\/copyright$/.test(path))),
    )
    prune(root, root, (path) => {
      const name = relative(root, path)
      if (/\/doc\//.test(name)) return copyrights.has(name)
      return TEXTS.test(name) || isProgram(path)
    })
    const write = (path, text) => {
      mkdirSync(dirname(join(root, path)), { recursive: true })
      writeFileSync(join(root, path), text)
    }
    for (const name of APPLETS) symlinkSync('busybox', join(root, 'usr/bin', name))
    for (const family of ['iptables', 'ip6tables'])
      for (const name of [family, `${family}-save`, `${family}-restore`])
        symlinkSync('xtables-nft-multi', join(root, 'usr/sbin', name))
    for (const name of ['dev', 'proc', 'root', 'run', 'sys', 'tmp']) mkdirSync(join(root, name), { recursive: true })
    chmodSync(join(root, 'tmp'), 0o1777)
    write('etc/ssl/certs/ca-certificates.crt', trusted)
    write('etc/passwd', 'root:x:0:0:root:/root:/bin/sh\n')
    write('etc/group', 'root:x:0:\n')
    for (const { control } of inside)
      write(`var/lib/dpkg/status.d/${/^Package: (.*)$/m.exec(control)[1]}`, `${control}Status: install ok installed\n`)
    symlinkSync('/run', join(root, 'var/run'))
  })
