// image.mjs - builds a container image with the executable for each architecture, and a common index of the images, as
// one archive in the OCI image layout (github.com/opencontainers/image-spec, image-layout.md).
//
// An image has two layers: Debian programs that weft runs, with their libraries (image-base.mjs), and weft itself at
// the path of flanneld. The image detects the kind of iptables in the same way as the image that deploy/Dockerfile
// builds, so users can run either image.

import { chmodSync, copyFileSync, mkdirSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { gzip, sha256, tarOf } from './archive.mjs'
import { imageBase } from './image-base.mjs'
import { putProgram } from './program.mjs'

const TYPE = 'application/vnd.oci.image'
const FAMILIES = ['iptables', 'ip6tables']
const TOOLS = { 'install-conf': 'install-conf', 'mk-docker-opts.sh': 'docker-opts' }

/**
 * Empties the folder `tree` and puts the files of the image's second layer into it: weft, its addon, scripts and
 * licenses.
 */
function layTree({ root, tree, build }) {
  rmSync(tree, { recursive: true, force: true })
  const at = (path) => {
    mkdirSync(dirname(join(tree, path)), { recursive: true })
    return join(tree, path)
  }
  const program = (from, path) => {
    copyFileSync(from, at(path))
    chmodSync(join(tree, path), 0o755)
  }
  putProgram(build, { tree, bin: 'opt/weft/bin', lib: 'opt/weft/lib', names: ['weftd', 'weft', 'flanneld'] })
  // The addon is a separate file. If it were inside the executable, the container would need a writable folder from
  // which code may be loaded.
  if (build.executable !== undefined) program(build.addon, 'opt/weft/bin/weft.node')
  for (const name of ['weft', 'weftd']) symlinkSync(`../../../opt/weft/bin/${name}`, at(`usr/local/bin/${name}`))
  program(join(root, 'deploy/flanneld.sh'), 'opt/bin/flanneld')
  for (const [name, command] of Object.entries(TOOLS)) {
    writeFileSync(at(`opt/bin/${name}`), `#!/bin/sh\nexec /opt/weft/bin/weft ${command} "$@"\n`)
    chmodSync(join(tree, `opt/bin/${name}`), 0o755)
  }
  for (const kind of ['nft', 'legacy'])
    for (const family of FAMILIES)
      for (const name of [family, `${family}-save`, `${family}-restore`])
        symlinkSync(`/usr/sbin/xtables-${kind}-multi`, at(`opt/weft/iptables/${kind}/${name}`))
  writeFileSync(at('usr/share/doc/weft/copyright'), build.licences)
}

/**
 * Returns a function that stores bytes in the image layout under their digest and returns an OCI descriptor of the
 * bytes.
 */
function blobStore(layout) {
  rmSync(layout, { recursive: true, force: true })
  mkdirSync(join(layout, 'blobs/sha256'), { recursive: true })
  return (bytes, mediaType) => {
    const hash = sha256(bytes)
    writeFileSync(join(layout, 'blobs/sha256', hash), bytes)
    return { mediaType, digest: `sha256:${hash}`, size: bytes.length }
  }
}

/** Returns the OCI configuration of an image, which `docker inspect` and registries show. */
function configOf({ version, publisher, architecture, digests }) {
  const created = new Date(Number(process.env.SOURCE_DATE_EPOCH) * 1000).toISOString()
  const label = (name) => `org.opencontainers.image.${name}`
  return {
    created,
    ...architecture.platform,
    os: 'linux',
    config: {
      // The container's user is root, because root owns /run/flannel on the host. The container needs the device
      // /dev/net/tun and, of root's capabilities, only CAP_NET_ADMIN.
      Env: [
        'PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
        'FLANNELD_STATUS_SOCKET=/run/flannel/weftd.sock',
      ],
      Entrypoint: ['/opt/bin/flanneld'],
      WorkingDir: '/',
      Labels: {
        [label('title')]: 'weft',
        [label('description')]: 'A drop-in replacement for flanneld',
        [label('version')]: version,
        [label('licenses')]: 'Apache-2.0',
        [label('source')]: publisher.repository,
      },
    },
    rootfs: { type: 'layers', diff_ids: digests },
    history: [
      { created, created_by: "Debian's packages", comment: 'programs and their libraries' },
      { created, created_by: `weft ${version}` },
    ],
  }
}

const json = (value) => Buffer.from(JSON.stringify(value))

/**
 * Writes the archive with the images to the file `target`.
 * @param {{ root: string, work: string, version: string, publisher: typeof import('./publisher.json'), builds: readonly {
 *   architecture: import('./architectures.mjs').Architecture, executable?: string, addon: string, npm: string, licences: string }[], target:
 *   string }} from
 * @returns {string} The digest of the common index, by which users can refer to the image on every architecture.
 */
export function buildImage({ root, work, version, publisher, builds, target }) {
  const layout = join(work, 'layout')
  const blob = blobStore(layout)
  const manifests = builds.map((build) => {
    const { architecture } = build
    const tree = join(work, architecture.name)
    layTree({ root, tree, build })
    const tars = [imageBase(architecture), tree].map((folder) => tarOf(folder))
    const layers = tars.map((tar) => blob(gzip(tar), `${TYPE}.layer.v1.tar+gzip`))
    const digests = tars.map((tar) => `sha256:${sha256(tar)}`)
    const config = blob(json(configOf({ version, publisher, architecture, digests })), `${TYPE}.config.v1+json`)
    const mediaType = `${TYPE}.manifest.v1+json`
    return {
      ...blob(json({ schemaVersion: 2, mediaType, config, layers }), mediaType),
      platform: { ...architecture.platform, os: 'linux' },
    }
  })
  const mediaType = `${TYPE}.index.v1+json`
  const index = blob(json({ schemaVersion: 2, mediaType, manifests }), mediaType)
  // podman and containerd take the name of an imported image from an annotation of the index. podman reads the first
  // annotation, and containerd the second.
  const name = `${publisher.image}:${version}`
  const annotations = { 'org.opencontainers.image.ref.name': name, 'io.containerd.image.name': name }
  const named = { ...index, annotations }
  writeFileSync(join(layout, 'oci-layout'), json({ imageLayoutVersion: '1.0.0' }))
  writeFileSync(join(layout, 'index.json'), json({ schemaVersion: 2, mediaType, manifests: [named] }))
  writeFileSync(target, tarOf(layout, ...readdirSync(layout).toSorted()))
  return index.digest
}
