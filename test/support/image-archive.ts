// image-archive.ts - writes small container images in the format of `docker save`, because no registry can be reached in tests.

import { createHash } from 'node:crypto'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { output } from '../../lab/command.ts'

interface ImageContents {
  /** The name with a tag, such as `localhost/pause:1`. */
  readonly name: string
  /** The folders with the files of the layers; a later layer covers earlier ones. */
  readonly layers: readonly string[]
  readonly entrypoint: readonly string[]
  readonly env?: readonly string[]
  /** The name of the architecture in container images; by default this machine's. */
  readonly architecture?: string
}

const OWN_ARCHITECTURE = process.arch === 'x64' ? 'amd64' : process.arch

/** Writes an image, and returns the path of the archive. `folder` is for its files, and must not exist before. */
export async function writeImage(
  folder: string,
  { name, layers, entrypoint, env = [], architecture = OWN_ARCHITECTURE }: ImageContents,
): Promise<string> {
  mkdirSync(folder, { recursive: true })
  const at = (file: string): string => join(folder, file)
  const digests: string[] = []
  const names = layers.map((_, index) => `layer${index}.tar`)
  for (const [index, layer] of layers.entries()) {
    await output(['tar', '-C', layer, '--owner=0', '--group=0', '-cf', at(names[index]!), '.'])
    const hash = createHash('sha256').update(readFileSync(at(names[index]!)))
    digests.push(`sha256:${hash.digest('hex')}`)
  }
  writeFileSync(
    at('config.json'),
    JSON.stringify({
      architecture,
      os: 'linux',
      config: { Entrypoint: entrypoint, Env: env },
      rootfs: { type: 'layers', diff_ids: digests },
    }),
  )
  writeFileSync(at('manifest.json'), JSON.stringify([{ Config: 'config.json', RepoTags: [name], Layers: names }]))
  await output(['tar', '-C', folder, '-cf', `${folder}.tar`, 'manifest.json', 'config.json', ...names])
  rmSync(folder, { recursive: true })
  return `${folder}.tar`
}

export const PAUSE = 'localhost/pause:1'

/** Writes an image that does nothing, for the sandboxes of pods. */
export async function writePause(folder: string, architecture = OWN_ARCHITECTURE): Promise<string> {
  const layer = `${folder}-layer`
  mkdirSync(layer, { recursive: true })
  writeFileSync(`${folder}.c`, '#include <unistd.h>\nint main(void) { for (;;) pause(); }\n')
  await output(['gcc', '-static', '-Os', '-o', join(layer, 'pause'), `${folder}.c`])
  return writeImage(folder, { name: PAUSE, layers: [layer], entrypoint: ['/pause'], architecture })
}
