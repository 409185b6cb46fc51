// build-page.mjs - builds the status page as one file: puts the style, the script and uPlot into
// src/report/page/index.html, and writes dist/src/report/page/page.html.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { rolldown } from 'rolldown'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const read = (path) => readFileSync(join(root, path), 'utf8')
const folder = 'dist/src/report/page'

const shorten = (css) =>
  css
    .replaceAll(/\/\*.*?\*\//gs, '')
    .replaceAll(/\s*\n\s*/g, '\n')
    .trim()

const bundle = await rolldown({ input: join(root, 'src/report/page/main.ts'), platform: 'browser' })
const { output } = await bundle.generate({ format: 'iife', minify: true, comments: false })
await bundle.close()
const script = output[0].code.trim()
const style = shorten(`${read('node_modules/uplot/dist/uPlot.min.css')}\n${read('src/report/page/style.css')}`)
if (/<\/?(script|style|!--)/i.test(script + style)) throw new Error('the script or the style would end their element')

// The license of uPlot must accompany every copy of its code, so the page begins with the license.
const notice = `<!--\nuPlot, which draws the charts:\n\n${read('node_modules/uplot/LICENSE').trim()}\n-->\n`
let page = read('src/report/page/index.html')
const parts = [
  [/<!-- index\.html.*?-->\n/s, notice],
  ['<style></style>', `<style>${style}</style>`],
  ['<script></script>', `<script>${script}</script>`],
]
for (const [place, part] of parts) {
  const whole = page.replace(place, () => part)
  if (whole === page) throw new Error(`src/report/page/index.html has no ${place}`)
  page = whole
}
mkdirSync(join(root, folder), { recursive: true })
writeFileSync(join(root, folder, 'page.html'), page)
